"""The average of gradients over the ranks that have them, and of what travels with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from hpc_train.distributed.collectives import MOST_ELEMENTS, Collectives, in_pieces
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.share import Averaged
from hpc_train.lazy import tf

Compression = Literal["fp16", "bf16"]


class GradientAllreduce:
    """Averages what one step has computed over the ranks of a group. A single rank keeps what it has.

    That is one grouped allreduce among all ranks, and one among those of the data axis where layers are divided.

    Args:
        collectives: Of all ranks that train. mesh: theirs, see Groups.of.
        compression: Gradients in float32 are sent with 16 bits a number, see `_slice_in_16_bits`.

    Attributes:
        ranks: How many take part. collectives, groups: by which they exchange.
    """

    def __init__(
        self, collectives: Collectives, compression: Compression | None = None, mesh: Mesh | None = None
    ) -> None:
        self.collectives, self._compression = collectives, compression
        self.groups, self.ranks = Groups.of(collectives, mesh), collectives.ranks

    def average(
        self, gradients: list[tf.Tensor], exact: list[tf.Tensor], over: Sequence[str] | None = None
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The mean of each tensor over ranks, the same to the bit on them. Called inside a tf.function; collective.

        Args:
            gradients: May lose accuracy on the way, where they are compressed; then their shapes are static.
            exact: Lose none. All are of floating dtypes.
            over: Over whom each is averaged, see share.Averaged; None: over all.
        """
        if self.ranks == 1:
            return gradients, exact
        given, count = [*gradients, *exact], len(gradients)
        among = list(over) if over is not None else ["world"] * len(given)
        if self.groups.data.ranks == self.ranks:
            among = ["world" if whom == "data" else whom for whom in among]
        for whom, collectives in (("world", self.groups.every), ("data", self.groups.data)):
            places = [place for place, found in enumerate(among) if found == whom]
            if not places:
                continue
            first = sum(place < count for place in places)
            means = self._averaged(collectives, [given[p] for p in places[:first]], [given[p] for p in places[first:]])
            for place, mean in zip(places, means, strict=True):
                given[place] = mean
        return given[:count], given[count:]

    def _averaged(
        self, collectives: Collectives, gradients: list[tf.Tensor], exact: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        short = [place for place, g in enumerate(gradients) if g.dtype == tf.float32] if self._compression else []
        whole = [place for place in range(len(gradients)) if place not in set(short)]
        given = [*(gradients[place] for place in whole), *exact]
        means = _by_pieces(given, MOST_ELEMENTS, lambda those: collectives.allreduce(those, "mean", gradient=False))
        averaged = dict(zip(whole, means, strict=False))
        if short and collectives.ranks == 1:
            averaged.update((place, gradients[place]) for place in short)
        elif short:
            most = MOST_ELEMENTS // collectives.ranks * collectives.ranks  # of what is padded to a multiple
            among = _by_pieces(
                [gradients[place] for place in short],
                most,
                lambda those: [m for some in _together(those, most) for m in self._mean_in_16_bits(collectives, some)],
            )
            averaged.update(zip(short, among, strict=True))
        return [*(averaged[place] for place in range(len(gradients))), *means[len(whole) :]]

    def mean(self, tensor: tf.Tensor) -> tf.Tensor:
        """The mean of one small tensor over all ranks. Called inside a tf.function; collective."""
        return self.collectives.allreduce([tensor], "mean", gradient=False)[0]

    def scattered(self, over: Averaged, rows: tf.Tensor) -> tf.Tensor:
        """This rank's row of the mean of gradients, `[ranks, n]`, over ranks. Called inside a tf.function; collective.

        Args:
            over: Over whom.
        """
        collectives = self.groups.every if over == "world" else self.groups.data
        if self._compression and rows.dtype == tf.float32:
            return self._slice_in_16_bits(collectives, tf.reshape(tf.cast(rows, self._short), [-1]))
        return collectives.reducescatter(rows, "mean")

    @property
    def _short(self) -> tf.DType:
        return tf.float16 if self._compression == "fp16" else tf.bfloat16

    def _mean_in_16_bits(self, collectives: Collectives, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The mean of float32 tensors: each rank averages its slice, and gives it to all."""
        sizes = [tensor.shape.num_elements() for tensor in tensors]
        missing = -sum(sizes) % collectives.ranks
        parts = [tf.reshape(tf.cast(tensor, self._short), [-1]) for tensor in tensors]
        flat = tf.concat([*parts, tf.zeros([missing], self._short)] if missing else parts, axis=0)
        gathered = collectives.allgather(tf.cast(self._slice_in_16_bits(collectives, flat), self._short))
        parts = tf.split(gathered, [*sizes, missing])[: len(sizes)]
        return [tf.reshape(tf.cast(p, tf.float32), t.shape) for p, t in zip(parts, tensors, strict=True)]

    def _slice_in_16_bits(self, collectives: Collectives, flat: tf.Tensor) -> tf.Tensor:
        """This rank's slice of the mean of float32 numbers, sent as float16 or bfloat16 and summed in float32.

        Each rank gets its slice of all ranks' numbers and averages it. With an allgather behind it, as many numbers go
        over the wire as in a ring-allreduce, each rounded once on each of the two ways, and a sum cannot overflow. A
        sum taken in float16 would be rounded after each addition.
        """
        slices = tf.split(collectives.alltoall(flat), collectives.ranks)
        return tf.add_n([tf.cast(part, tf.float32) for part in slices]) / collectives.ranks


def _by_pieces(
    tensors: Sequence[tf.Tensor], most: int, exchange: Callable[[list[tf.Tensor]], list[tf.Tensor]]
) -> list[tf.Tensor]:
    """What `exchange` makes of `tensors`, of which it is given pieces of at most `most` elements."""
    pieces = [in_pieces(tensor, most) for tensor in tensors]
    found = iter(exchange([piece for those in pieces for piece in those]))
    changed = [[next(found) for _ in those] for those in pieces]
    return [
        those[0] if len(those) == 1 else tf.reshape(tf.concat(those, axis=0), tensor.shape)
        for those, tensor in zip(changed, tensors, strict=True)
    ]


def _together(tensors: Sequence[tf.Tensor], most: int) -> Iterator[list[tf.Tensor]]:
    """`tensors`, one after the other, as many at a time as have at most `most` elements together."""
    some, size = list[tf.Tensor](), 0
    for tensor in tensors:
        own = tensor.shape.num_elements()
        if some and size + own > most:
            yield some
            some, size = [], 0
        some.append(tensor)
        size += own
    if some:
        yield some
