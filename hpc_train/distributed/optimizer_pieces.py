"""Each rank updates its pieces of the trainable variables, and holds the optimizer's state of these alone.

Stage 1 of Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv:1910.02054:
gradients are averaged by a reducescatter, each rank updates its pieces, an allgather gives the variables to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from hpc_train.distributed.collectives import MOST_ELEMENTS, Collectives
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_trials import copies_in, refuse_uncuttable
from hpc_train.distributed.optimizer_variables import OptimizerVariables, build, exclude_alike, held_as, of_parts
from hpc_train.distributed.partition import Partition, VariableSpec, even_partition
from hpc_train.distributed.share import Averaged, Share, averaged_over, set_share, share_of
from hpc_train.distributed.tensors import ALIGNMENT, dtype_of, nbytes_of
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf

OPTION = "run.shard_optimizer"
BUCKET_BYTES = 32 << 20
"""Small variables travel together, up to so many bytes."""
LARGE_BYTES = 1 << 20
"""Variables of so many travel apart and as they are, where they divide evenly: nothing is copied."""


@dataclass(frozen=True)
class Bucket:
    """Variables of one dtype that ranks exchange together.

    Attributes:
        numbers: Of the variables. over: among whom they are cut.
        partition: Which rank has which part. part: this one's number among them.
    """

    numbers: tuple[int, ...]
    over: Averaged
    partition: Partition
    part: int

    @property
    def ranks(self) -> int:
        """Among which it is cut."""
        return len(self.partition.cuts) - 1

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.partition.variables[0].dtype.itemsize

    @property
    def width(self) -> int:
        """Elements of a rank's part, with the padding."""
        return self.partition.nbytes_of(0) // self.itemsize

    @cached_property
    def places(self) -> list[tuple[int, int, int]]:
        """Of each variable: where this rank's piece begins in its part, and which of its elements that has."""
        own = {piece.variable: piece for piece in self.partition.pieces(self.part)}
        origin = self.partition.cuts[self.part]
        return [
            ((own[n].offset - origin) // self.itemsize, own[n].start, own[n].stop) if n in own else (0, 0, 0)
            for n in range(len(self.numbers))
        ]

    def begin_of(self, place: int) -> int:
        """The element at which a variable begins, of all parts."""
        return self.partition.offsets[place] // self.itemsize


def buckets_of(variables: Sequence[Any], mesh: Mesh) -> list[Bucket]:
    """How the `variables` that can be cut are exchanged. Local.

    Not cut are those without axes, those with a constraint, which looks at the whole, and those that one rank alone
    updates.
    """
    parts: dict[Averaged, tuple[int, int]] = {"world": (mesh.size, mesh.rank), "data": (mesh.data, mesh.data_index)}
    opened: dict[tuple[Averaged, str], list[int]] = {}
    filled: list[tuple[Averaged, list[int]]] = []
    for number, variable in enumerate(variables):
        over = averaged_over(variable)
        ranks, _ = parts.get(over, (1, 0))
        nbytes = nbytes_of(variable)
        if ranks == 1 or not tuple(variable.shape) or variable.constraint is not None or not nbytes:
            continue
        if nbytes >= LARGE_BYTES and nbytes % (ranks * ALIGNMENT) == 0:
            filled.append((over, [number]))
            continue
        key = over, variable.dtype
        held = sum(nbytes_of(variables[n]) for n in opened.get(key, []))
        if key not in opened or held + nbytes > BUCKET_BYTES:
            opened[key] = []
            filled.append((over, opened[key]))
        opened[key].append(number)

    def bucket(over: Averaged, numbers: list[int]) -> Bucket:
        specs = [VariableSpec(tuple(variables[n].shape), dtype_of(variables[n])) for n in numbers]
        return Bucket(tuple(numbers), over, even_partition(specs, parts[over][0]), parts[over][1])

    return [bucket(over, numbers) for over, numbers in filled]


class OptimizerPieces:
    """The pieces of one rank as variables, and the optimizer built on them.

    A piece holds no memory of its own between steps: it is that of the variable.

    Args:
        optimizer: Not built yet. variables: the model's, in the order in which a whole optimizer would have them.
        mesh: The ranks that train, and this one's place.

    Attributes:
        held: For each variable its piece, flat and maybe empty, or the variable where it is not cut.
        optimizer_variables: The optimizer's, by variable.

    Raises:
        UserError: The optimizer does not treat pieces as the whole.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], mesh: Mesh) -> None:
        kind = type(optimizer).__name__
        if optimizer.built:
            raise UserError(
                f"{OPTION}: the {kind} is built already, on whole variables; leave that to the job (no optimizer.build "
                f"in the model function), or leave shard_optimizer out"
            )
        self.variables, self.buckets, self._mesh = list(variables), buckets_of(variables, mesh), mesh
        cut = [self.variables[n] for bucket in self.buckets for n in bucket.numbers]
        if cut:
            refuse_uncuttable(optimizer, cut, OPTION, "leave shard_optimizer out")
        self.held = list(variables)
        for bucket in self.buckets:
            for number, (_, start, stop) in zip(bucket.numbers, bucket.places, strict=True):
                self.held[number] = _piece(self.variables[number], start, stop)
        self.optimizer_variables: OptimizerVariables = build(optimizer, self.held)
        exclude_alike(optimizer, self.variables, self.held)
        slots = self.optimizer_variables.slots
        odd = [slot.path for n in self.cut for slot in slots[n] if share_of(slot) is None]
        if odd := [*odd, *(v.path for v in self.optimizer_variables.common if tuple(v.shape))]:
            raise UserError(
                f"{OPTION}: {kind} keeps variables that are not shaped like one of the model's ({odd[0]}), and cannot "
                "be divided among ranks; leave shard_optimizer out, or take another one"
            )
        self._begin_as_copies: list[tuple[int, Any]] = []
        for part, numbers in of_parts(optimizer, self.held) if cut else ():
            copies = copies_in(part)
            self._begin_as_copies += [(n, slots[n][copy]) for n in numbers for copy in copies if n in self.cut]
        self.begin()

    def begin(self) -> None:
        """Slots that begin as a copy of a variable become that of what the variables are now. Local, eagerly."""
        whole = {number: self.variables[number].value for number, _ in self._begin_as_copies}
        pieces = self.own(whole)
        for number, slot in self._begin_as_copies:
            slot.assign(pieces[number])

    @property
    def cut(self) -> set[int]:
        """Numbers of the variables that are cut."""
        return {number for bucket in self.buckets for number in bucket.numbers}

    def scattered(self, gradients: Mapping[int, Any], reduced: Callable[[Averaged, Any], Any]) -> dict[int, Any]:
        """This rank's pieces of the averaged `gradients` of variables that are cut, by number. Collective.

        Args:
            reduced: This rank's row of the mean over ranks, given who they are, and `[ranks, width]`.
        """
        found: dict[int, Any] = {}
        for bucket in reversed(self.buckets):  # of the last variables, gradients are computed first
            if not gradients.keys() & set(bucket.numbers):
                continue
            rows = tf.reshape(self._flat(bucket, gradients), [bucket.ranks, bucket.width])
            flat = tf.reshape(_by_columns(rows, bucket.ranks, partial(reduced, bucket.over)), [bucket.width])
            for number, (place, start, stop) in zip(bucket.numbers, bucket.places, strict=True):
                if number in gradients:
                    shape = tuple(self.held[number].shape)
                    found[number] = tf.reshape(flat[place : place + stop - start], shape)
        return found

    def own(self, gradients: Mapping[int, Any]) -> dict[int, Any]:
        """This rank's pieces of whole `gradients` of variables that are cut, by number."""
        return {
            number: self._piece_of(number, start, stop, gradients[number])
            for bucket in self.buckets
            for number, (_, start, stop) in zip(bucket.numbers, bucket.places, strict=True)
            if number in gradients
        }

    @contextmanager
    def updating(self, groups: Groups, alike: Callable[[list[Any]], None] | None = None) -> Iterator[None]:
        """A context that updates pieces: they begin as the variables are, which end as all ranks' are. Collective.

        Args:
            alike: Is told of tensors that are the same on all ranks.
        """
        for number, piece in self.own({n: self.variables[n].value for n in self.cut}).items():
            self.held[number].assign(piece)
        yield
        done: list[Any] = []
        for bucket in self.buckets:
            among: Collectives = groups.every if bucket.over == "world" else groups.data
            part = self._part(bucket, [tf.convert_to_tensor(self.held[n].value) for n in bucket.numbers])
            with tf.control_dependencies(done):  # whose memory is free then: not all variables are there twice
                row, gather = tf.reshape(part, [1, bucket.width]), partial(among.allgather, rows=bucket.ranks)
                flat = tf.reshape(_by_columns(row, bucket.ranks, gather), [-1])
            done = []
            for place, (number, (_, start, stop)) in enumerate(zip(bucket.numbers, bucket.places, strict=True)):
                variable, begin = self.variables[number], bucket.begin_of(place)
                whole = tf.reshape(flat[begin : begin + math.prod(variable.shape)], variable.shape)
                if alike:
                    alike([whole])
                piece = self._piece_of(number, start, stop, whole)  # shares its memory
                given = (variable.value, whole), (self.held[number].value, piece)
                done += [held.assign(value, read_value=False) for held, value in given]
            done = [] if tf.executing_eagerly() else done

    def collect(self, world: World) -> None:
        """The variables become what all ranks' pieces are. Collective over `world`, the ranks that train; eagerly."""
        for bucket in self.buckets:
            own = self._part(bucket, [tf.convert_to_tensor(self.held[n].value) for n in bucket.numbers])
            row = np.ascontiguousarray(own.numpy()).view(np.uint8)
            stacked = world.gather_arrays(row)
            rows = np.empty((world.size, row.size), np.uint8) if stacked is None else stacked
            world.broadcast_arrays([rows])
            ranks = range(world.size) if bucket.over == "world" else self._mesh.data_group
            flat = np.ascontiguousarray(rows[list(ranks)]).reshape(-1).view(own.dtype.as_numpy_dtype)
            for place, number in enumerate(bucket.numbers):
                shape, begin = tuple(self.variables[number].shape), bucket.begin_of(place)
                self.variables[number].assign(flat[begin : begin + math.prod(shape)].reshape(shape).copy())

    def _piece_of(self, number: int, start: int, stop: int, whole: Any) -> Any:
        return tf.reshape(tf.reshape(whole, [-1])[start:stop], tuple(self.held[number].shape))

    def _flat(self, bucket: Bucket, values: Mapping[int, Any]) -> Any:
        """The whole variables' values one after the other, as all parts have them; zeros where there are none."""
        placed = []
        for place, number in enumerate(bucket.numbers):
            variable = self.variables[number]
            value = values.get(number)
            flat = tf.zeros([math.prod(variable.shape)], variable.dtype) if value is None else tf.reshape(value, [-1])
            placed.append((bucket.begin_of(place), flat))
        return _joined(placed, bucket.ranks * bucket.width)

    def _part(self, bucket: Bucket, pieces: Sequence[Any]) -> Any:
        """The pieces one after the other, as this rank's part has them."""
        placed = [
            (place, tf.reshape(piece, [-1]))
            for (place, start, stop), piece in zip(bucket.places, pieces, strict=True)
            if start < stop
        ]
        if not placed:
            return tf.zeros([bucket.width], pieces[0].dtype)
        return _joined(placed, bucket.width)


def _piece(variable: Any, start: int, stop: int) -> Any:
    whole = share_of(variable) or Share(tuple(variable.shape))
    share = whole.narrowed(start, stop)
    held = held_as(variable, share.held)
    set_share(held, share, averaged_over(variable))
    return held


def _by_columns(rows: Any, ranks: int, exchange: Callable[[Any], Any]) -> Any:
    """What `exchange` makes of `rows`, given as many columns as `ranks` exchange at once, each with one row of them."""
    width, most = int(rows.shape[1]), MOST_ELEMENTS // ranks
    if width <= most:
        return exchange(rows)
    cut = [rows[:, begin : begin + most] for begin in range(0, width, most)]
    return tf.concat([tf.reshape(exchange(some), [-1, some.shape[1]]) for some in cut], axis=1)


def _joined(placed: Sequence[tuple[int, Any]], size: int) -> Any:
    """Flat tensors, each at its place, with zeros between them and behind, of `size` elements together."""
    parts, end = [], 0
    for place, flat in placed:
        if place > end:
            parts.append(tf.zeros([place - end], flat.dtype))
        parts.append(flat)
        end = place + int(flat.shape[0])
    if end < size:
        parts.append(tf.zeros([size - end], parts[0].dtype))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
