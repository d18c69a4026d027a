"""The average of gradients over all ranks: the one thing that a step of synchronous training exchanges."""

from __future__ import annotations

from typing import Literal

from hpc_train.distributed.collectives import Collectives
from hpc_train.lazy import tf

Compression = Literal["fp16", "bf16"]


class GradientAllreduce:
    """Averages what one step has computed, with one grouped allreduce. A single rank keeps what it has.

    Args:
        compression: Gradients in float32 are sent with 16 bits a number, see `_mean_in_16_bits`.

    Attributes:
        ranks: How many take part. collectives: by which they exchange.
    """

    def __init__(self, collectives: Collectives, compression: Compression | None = None) -> None:
        self.collectives, self._compression = collectives, compression
        self.ranks = collectives.ranks

    def average(self, gradients: list[tf.Tensor], exact: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The mean of each tensor over all ranks, the same to the bit on all. Called inside a tf.function; collective.

        Args:
            gradients: May lose accuracy on the way, where they are compressed; then their shapes are static.
            exact: Lose none. All are of floating dtypes.
        """
        if self.ranks == 1:
            return gradients, exact
        short = [place for place, g in enumerate(gradients) if g.dtype == tf.float32] if self._compression else []
        whole = [place for place in range(len(gradients)) if place not in set(short)]
        given = [*(gradients[place] for place in whole), *exact]
        means = self.collectives.allreduce(given, "mean", gradient=False)
        averaged = dict(zip(whole, means, strict=False))
        if short:
            averaged.update(zip(short, self._mean_in_16_bits([gradients[place] for place in short]), strict=True))
        return [averaged[place] for place in range(len(gradients))], means[len(whole) :]

    def mean(self, tensor: tf.Tensor) -> tf.Tensor:
        """The mean of one small tensor over all ranks. Called inside a tf.function; collective."""
        return self.collectives.allreduce([tensor], "mean", gradient=False)[0]

    def _mean_in_16_bits(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The mean of float32 tensors, sent as float16 or bfloat16 and summed in float32.

        Each rank gets its slice of all ranks' numbers, averages it, and gives the mean to all: as many numbers go over
        the wire as in a ring-allreduce, each rounded once on each of the two ways, and a sum cannot overflow. A sum
        taken in float16 would be rounded after each addition.
        """
        short = tf.float16 if self._compression == "fp16" else tf.bfloat16
        sizes = [tensor.shape.num_elements() for tensor in tensors]
        missing = -sum(sizes) % self.ranks
        parts = [tf.reshape(tf.cast(tensor, short), [-1]) for tensor in tensors]
        flat = tf.concat([*parts, tf.zeros([missing], short)] if missing else parts, axis=0)
        slices = tf.split(self.collectives.alltoall(flat), self.ranks)
        mean = tf.add_n([tf.cast(part, tf.float32) for part in slices]) / self.ranks
        gathered = self.collectives.allgather(tf.cast(mean, short))
        parts = tf.split(gathered, [*sizes, missing])[: len(sizes)]
        return [tf.reshape(tf.cast(p, tf.float32), t.shape) for p, t in zip(parts, tensors, strict=True)]
