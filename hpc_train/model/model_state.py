"""The variables of a model and of its optimizer by path: copied for a checkpoint, shared, averaged, compared."""

from __future__ import annotations

import hashlib
import logging
import re
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import starmap, zip_longest
from typing import Any

import numpy as np

from hpc_train.checkpoint.arena import Arena, ArraySpec
from hpc_train.checkpoint.format import COUNTER, Snapshot, StoredArray
from hpc_train.config.settings import Change, Settings, changes
from hpc_train.data.sampling.shuffle import derive_seed
from hpc_train.distributed.layout import lowest_holders
from hpc_train.distributed.remote_parts import RemoteParts
from hpc_train.distributed.share import share_of
from hpc_train.distributed.tensors import dtype_of, is_floating, nbytes_of, reader_of, view_of
from hpc_train.distributed.world import World
from hpc_train.errors import JobEndedError, UserError
from hpc_train.lazy import keras, tf
from hpc_train.model.layer_states import stateful_variables
from hpc_train.model.learning_rate import (
    LEARNING_RATE,
    are_rates,
    constant_rate,
    constant_rates,
    is_rate,
    with_rate,
    with_rates,
)
from hpc_train.model.own_steps import Updates
from hpc_train.model.replicas import Differing, differing
from hpc_train.outcome import EXIT_NOT_FINITE

log = logging.getLogger(__name__)

OF_THE_MODEL = ("model", "params", "optimizer", "run.mixed_precision")
MAX_SHOWN = 5


class ModelState:
    """The variables of a model and of its optimizer, by path, across ranks.

    Paths, shapes and order are those of the model on one rank, of whose variables ranks may hold parts.

    Attributes:
        world: The ranks among which it is compared and averaged.
        divided: Of each variable of which ranks hold parts, this rank's. parts: what the chief can read of them while
            `parts_read` is open; None else, and where there are none.
        carried: What the forward pass of a layer that trains may change (batch-norm averages): non-trainable
            floating-point variables. The training step averages the changes of those that it does change.
        not_trained: Those that are not trainable, whatever they hold, but for those of `layers`.
        layers: What stateful layers keep, which each rank has for itself.
        updates: The optimizers of the model.
    """

    def __init__(self, model: keras.Model, world: World, updates: Updates) -> None:
        self.world, self.updates = world, updates
        self.layers = stateful_variables(model)
        self._model = by_path(model.variables)
        self._optimizer = by_path([v for optimizer, _ in updates.optimizers for v in optimizer.variables])
        both = (("model", self._model), ("optimizer", self._optimizer))
        rate = constant_rate(updates.first) if updates.optimizers else None
        names = [name for name, variable in self._optimizer.items() if variable is rate]
        self._rate = (names[0], _numpy(rate)) if names else None
        rates = {id(variable) for variable in constant_rates(updates.first)} if updates.optimizers else set()
        self._rates = {place: _numpy(v) for place, v in enumerate(self._optimizer.values()) if id(v) in rates}
        self._all = {f"{kind}/{path}": variable for kind, own in both for path, variable in own.items()}
        self.divided = {name: share for name, v in self._all.items() if (share := share_of(v)) is not None}
        self.parts: RemoteParts | None = None
        self._metrics = list(model.metrics_variables)
        self._trainable = {id(v) for v in model.trainable_variables}
        of_layers = {id(v) for v in self.layers}
        floating = [v for v in self._model.values() if id(v) not in (self._trainable | of_layers) and is_floating(v)]
        frozen = {id(v) for layer in model._flatten_layers() if not layer.trainable for v in layer.variables}
        self.carried = [v for v in floating if id(v) not in frozen]
        self._rest = [v for v in floating if id(v) in frozen and share_of(v) is None]
        self._random = [v for path, v in self._model.items() if is_random_state(path, tuple(v.shape), v.dtype)]
        self.not_trained = [v for v in self._model.values() if id(v) not in (self._trainable | of_layers)]

    def everything(self) -> list[Any]:
        """All variables that a train_step may change, those of metrics, too."""
        return [*self._all.values(), *self._metrics]

    @property
    def variables(self) -> list[Any]:
        """The model's variables."""
        return list(self._model.values())

    @property
    def per_rank(self) -> list[Any]:
        """Those that each rank has for itself: random states, and what stateful layers keep."""
        return [*self._random, *self.layers]

    def shared(self) -> list[Any]:
        """The floating-point ones of model and optimizers that are to be the same on all ranks."""
        own = {id(variable) for variable in self.per_rank}
        return [v for v in self._all.values() if id(v) not in own and share_of(v) is None and is_floating(v)]

    def held_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds, computed: "parameters", "gradients" of those that train, "optimizer". Local."""
        trained = [variable for variable in self._model.values() if id(variable) in self._trainable]
        held = {"parameters": self._model.values(), "gradients": trained, "optimizer": self._optimizer.values()}
        return {name: sum(map(nbytes_of, variables)) for name, variables in held.items()}

    def signatures(self) -> list[str]:
        """Path, type and shape of each variable, without the numbers that Keras gives the layers of a process."""
        return [_without_counters(_signature(p, v)) for p, v in [*self._model.items(), *self._optimizer.items()]]

    def check_ranks(self) -> None:
        """UserError where ranks have built different models. Collective."""
        alike = [*self.signatures(), *map(_without_counters, self.divided)]
        digest = hashlib.sha256("\n".join(alike).encode()).hexdigest()
        on_chief = self.world.broadcast(digest)
        differing = self.world.first(self.world.rank if digest != on_chief else None)
        if differing is not None:
            raise UserError(
                f"model_fn built another model on rank {differing} than on rank 0; it must not depend on the rank"
            )

    def fit(self, snapshot: Snapshot, where: str, settings: Settings | None = None) -> Snapshot:
        """`snapshot` for this model: a learning rate that is a constant on one side alone is put in, or left out.

        Args:
            settings: Those of this run: a constant learning rate that is another one than the checkpoint's run was
                asked for takes the place of the checkpoint's; where that is not recorded, any other one, with a
                warning. None: the checkpoint's stays.

        Raises:
            UserError: It is of another model; names the first variable that differs, and what has been changed.
        """
        changed = changes(snapshot.settings, settings) if snapshot.settings and settings else []
        renewed = any(change.key.startswith(LEARNING_RATE) for change in changed)
        if settings and snapshot.settings is None and self._rate is not None:
            saved = [array for name, array in snapshot.optimizer.items() if is_rate(name)][-1:]
            if renewed := bool(saved) and not np.array_equal(saved[0], self._rate[1]):
                log.warning(
                    f"{where} does not record what its run was asked for: training goes on with the learning rate of "
                    f"this run, {self._rate[1]:g}, and not with the checkpoint's, {saved[0]:g}; ask for that to keep it"
                )
        snapshot = replace(snapshot, optimizer=with_rate(snapshot.optimizer, self._optimizer, self._rate, renewed))
        if any(are_rates(change.key) for change in changed):
            snapshot = replace(snapshot, optimizer=with_rates(snapshot.optimizer, self._rates))
        self._check(snapshot, where, [change for change in changed if change.key.startswith(OF_THE_MODEL)])
        return snapshot

    def _check(self, snapshot: Snapshot, where: str, changed: Sequence[Change]) -> None:
        since = "; ".join(f"{c.key} was {c.before}, and is {c.now}" for c in changed[:MAX_SHOWN])
        for kind, variables in (("model", self._model), ("optimizer", self._optimizer)):
            saved = getattr(snapshot, kind)
            pairs = zip_longest(starmap(_signature, variables.items()), starmap(_signature, saved.items()))
            for i, (here, there) in enumerate(pairs):
                if here is None or there is None or _without_counters(here) != _without_counters(there):
                    raise UserError(
                        f"{where}: holds another model: {kind} variable {i} is {there or 'none'} there, but "
                        f"{here or 'no such variable'} here{f' ({since})' if since else ''}; choose the model and the "
                        "optimizer that were trained in this job-dir, or another job-dir, to which `warm_start_from` "
                        "this one brings the variables that fit"
                    )

    @contextmanager
    def parts_read(self) -> Iterator[None]:
        """A context in which the chief can save what other ranks hold; nothing where each holds all. Collective."""
        if not self.divided:
            yield
            return
        self.reserve()
        held = dict(zip(self._copied, self.room, strict=True))
        copy = int if self.world.is_chief else self.copy  # the chief copies the rest, too: see snapshot
        with RemoteParts(self.world, [(share, held[name]) for name, share in self.divided.items()], copy) as self.parts:
            yield
        self.parts = None

    def reserve(self) -> None:
        """Makes the memory that snapshots are taken into, as large as what is copied here. Local; done once."""
        _ = self.room, self._read

    @cached_property
    def _copied(self) -> dict[str, Any]:
        """The variables that this rank copies: all, or beside a chief its parts alone."""
        beside = bool(self.divided) and not self.world.is_chief
        return {name: v for name, v in self._all.items() if not beside or name in self.divided}

    @cached_property
    def room(self) -> list[np.ndarray]:
        """The memory that snapshots are taken into: an array for each variable that this rank copies. Local."""
        specs = {name: ArraySpec(tuple(v.shape), np.dtype(_host_view(v).dtype)) for name, v in self._copied.items()}
        return list(Arena(specs).arrays.values())

    @cached_property
    def _read(self) -> Callable[[], Any]:
        return reader_of(list(self._copied.values()))

    def snapshot(self, about: Snapshot) -> Snapshot:
        """`about` with all variables, for the chief: copies, and of which ranks hold parts what fetches them.

        The copies lie in memory that the next snapshot takes over. The other ranks have copied their parts before.
        """
        self.copy()
        return self.copied(about)

    def copy(self) -> dict[int, np.ndarray]:
        """Copies what this rank copies into memory kept for it; returns the copies, by the variables' `id`. Local."""
        for copy, tensor in zip(self.room, self._read(), strict=True):
            np.copyto(copy, view_of(tensor))
        return {id(variable): copy for variable, copy in zip(self._copied.values(), self.room, strict=True)}

    def copied(self, about: Snapshot) -> Snapshot:
        """`about` with what `copy` has copied, and what may have been written over it since, of now. Local."""
        whole: dict[str, Any] = dict(zip(self._all, self.room, strict=True))
        if self.divided:
            assert self.parts is not None, "parts can be read"
            whole.update(zip(self.divided, self.parts.arrays, strict=True))
        arrays = list(whole.values())
        model = dict(zip(self._model, arrays[: len(self._model)], strict=True))
        optimizer = dict(zip(self._optimizer, arrays[len(self._model) :], strict=True))
        return replace(about, model=model, optimizer=optimizer, time=time.time())

    def assign(self, snapshot: Snapshot) -> None:
        """Gives all variables the values of `snapshot`, of whole arrays. Local."""
        for (_, variable), array in self._paired(snapshot):
            share = share_of(variable)  # a copy: else TensorFlow may use the snapshot's own memory
            variable.assign((array if share is None else share.of(array)).copy())

    def assign_part(self, name: str, part: np.ndarray) -> None:
        """Gives a variable what this rank holds of it. Local."""
        self._all[name].assign(part)

    def left(self, snapshot: Snapshot) -> list[str | None]:
        """For each variable in turn the dataset where its array of `snapshot` still is, None where it has been read."""
        return [array.dataset if isinstance(array, StoredArray) else None for _, array in self._paired(snapshot)]

    def stored(self, snapshot: Snapshot) -> dict[int, StoredArray]:
        """What was left in the checkpoint of `snapshot`, by the id of the variable."""
        return {id(v): array for (_, v), array in self._paired(snapshot) if isinstance(array, StoredArray)}

    def by_name(self, left: Sequence[str | None]) -> dict[str, str]:
        """What `left` gave on another rank, whose variables may have other numbers, by the names of this one's."""
        return {name: dataset for name, dataset in zip(self._all, left, strict=True) if dataset is not None}

    def _paired(self, snapshot: Snapshot) -> Iterator[tuple[tuple[str, Any], Any]]:
        arrays = [*snapshot.model.values(), *snapshot.optimizer.values()]
        return zip(self._all.items(), arrays, strict=True)

    def share(self, snapshot: Snapshot | None, part: int, left: Collection[str] = ()) -> None:
        """Gives all ranks the chief's state: `snapshot` where it has one, else its variables. Collective.

        Not that of which ranks hold parts, and not what is `left` to each of them.

        Random states (dropout and the like) are then made different on every rank that trains: the seed of the one that
        reads part p > 0 of the data derives from the chief's and p, so that a restart on any number of ranks finds the
        same ones.
        """
        whole = {name: v for name, v in self._all.items() if name not in self.divided and name not in left}
        if snapshot is not None:
            arrays = [array for (name, _), array in self._paired(snapshot) if name in whole]
        else:
            arrays = [_numpy(v) for v in whole.values()]
        self.world.broadcast_arrays(arrays)
        for variable, array in zip(whole.values(), arrays, strict=True):
            variable.assign(array)
        if part > 0:
            for variable in self._random:
                state = _numpy(variable)
                state[0] = derive_seed(int(state[0]), 0, part) % 2**32
                variable.assign(state)

    def average(self) -> None:
        """Replaces the floating-point variables of frozen layers by their mean over ranks, where they differ.

        For layers that change such a variable all the same; those of other layers are `carried`. Collective. Uses
        float64 sums over MPI.
        """
        if self.world.size == 1 or not self._rest:
            return
        values = [_numpy(v) for v in self._rest]
        digests = np.array([_digest(value) for value in values])
        differing = self.world.sum((digests != self.world.broadcast(digests.tolist())).astype(np.float64))
        for variable, value, differs in zip(self._rest, values, differing, strict=True):
            if differs:
                mean = self.world.sum(np.ascontiguousarray(value, np.float64)) / self.world.size
                variable.assign(mean.astype(value.dtype))

    def compare(self, step: int) -> None:
        """Compares what ranks must have alike, to the bit: trainable and carried variables, the optimizer's.

        All ranks, and of a variable of which they hold parts those with the same one. Collective.

        Raises:
            JobEndedError: Some rank's differ from those of most; it names the ranks and the first variable.
        """
        compared = self._trainable | {id(v) for v in (*self.carried, *self._optimizer.values())}
        found = self._differing([name for name, v in self._all.items() if id(v) in compared])
        if found is None:
            return
        first, shown = found.ranks[0], ", ".join(str(rank + self.world.offset) for rank in found.ranks[:8])
        raise JobEndedError(
            f"the variables of rank {shown} differ from those of "
            f"{'most ranks' if found.most else f'rank {found.usual + self.world.offset}'} after step {step}, first "
            f"{found.name}: memory or a processor of that rank's node may be faulty; start the job again elsewhere to "
            "go on from the last checkpoint",
            EXIT_NOT_FINITE,
            first + self.world.offset if len(found.ranks) == 1 and found.most else None,
        )

    def check_parts(self) -> None:
        """UserError where ranks with the same part of a variable begin with other values of it. Collective."""
        if self.divided and (found := self._differing(self.divided)) is not None:
            raise UserError(
                f"{found.name}: ranks {found.usual} and {found.ranks[0]} hold the same part of it, but model_fn gives "
                "them other values; draw them by Keras, or from generators with a seed (numpy.random.default_rng(1))"
            )

    def _differing(self, names: Collection[str]) -> Differing | None:
        return differing(self.world, {name: _digest(_host_view(self._all[name])) for name in names}, self._lowest)

    @cached_property
    def _lowest(self) -> dict[str, np.ndarray]:
        """By variable of which ranks hold parts, for each rank the lowest one with the same part. Collective."""
        return dict(zip(self.divided, lowest_holders(self.world, list(self.divided.values())), strict=True))


def by_path(variables: list[Any]) -> dict[str, Any]:
    """Keras variables by path; a second one of the same path has #2 appended, and so on, as in a checkpoint."""
    return by_name([(variable.path, variable) for variable in variables])


def by_name(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Values by name, likewise."""
    named: dict[str, Any] = {}
    for path, value in pairs:
        name, count = path, 1
        while name in named:
            count += 1
            name = f"{path}#{count}"
        named[name] = value
    return named


def _numpy(variable: Any) -> np.ndarray:
    return np.array(variable.numpy() if hasattr(variable, "numpy") else variable, order="C")


def _host_view(variable: Any) -> np.ndarray:
    """The variable's elements, on a CPU without a copy; valid until the variable changes.

    `Variable.numpy()` copies, and costs some 50 µs a variable beside.
    """
    resource = variable.value
    return view_of(tf.raw_ops.ReadVariableOp(resource=resource.handle, dtype=resource.dtype))


def _digest(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def is_random_state(path: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether it is the state of a keras.random.SeedGenerator: [seed, counter], whose dtype depends on Keras."""
    last = path.rpartition("/")[2].partition("#")[0]
    return last == "seed_generator_state" and shape == (2,) and dtype in ("uint32", "int64")


def _signature(path: str, array: Any) -> str:
    """Of a variable, or of an array of a snapshot."""
    dtype = array.dtype if isinstance(array.dtype, np.dtype) else dtype_of(array)
    return f"{path} {dtype.name} {list((share_of(array) or array).shape)}"


def _without_counters(signature: str) -> str:
    """Keras numbers the layers of a process (dense, dense_1, …), so the same model built twice has other numbers."""
    return re.sub(COUNTER, "", signature)
