"""Synchronous training: gradients averaged over all ranks by Horovod.

Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv:1802.05799.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hpc_train.distributed.world import World

if TYPE_CHECKING:
    import tensorflow as tf

Compression = Literal["fp16", "bf16"]


class HorovodSync:
    """Averages with one grouped allreduce a step. Starting it is collective.

    Horovod's own wrappers (DistributedGradientTape, DistributedOptimizer) fail on Keras 3 variables (horovod#4290);
    the allreduce of raw gradients does not touch them.

    Args:
        compression: Gradients in float32 are sent with 16 bits a number, see `_mean_in_16_bits`.
    """

    def __init__(self, world: World, compression: Compression | None = None) -> None:
        self._hvd = world.horovod()
        self._compression = compression
        self.ranks = world.size

    def average(self, gradients: list[tf.Tensor], exact: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The mean of each tensor over all ranks."""
        import tensorflow as tf

        short = [place for place, g in enumerate(gradients) if g.dtype == tf.float32] if self._compression else []
        whole = [place for place in range(len(gradients)) if place not in set(short)]
        means = self._mean([*(gradients[place] for place in whole), *exact])
        averaged = dict(zip(whole, means, strict=False))
        if short:
            averaged.update(zip(short, self._mean_in_16_bits([gradients[place] for place in short]), strict=True))
        return [averaged[place] for place in range(len(gradients))], means[len(whole) :]

    def _mean(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Those of one dtype in one allreduce, as Horovod wants it."""
        means: list[tf.Tensor] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            group = self._hvd.grouped_allreduce([tensors[place] for place in places], op=self._hvd.Average)
            for place, tensor in zip(places, group, strict=True):
                means[place] = tensor
        return means

    def _mean_in_16_bits(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The mean of float32 tensors, sent as float16 or bfloat16 and summed in float32.

        Each rank gets its slice of all ranks' numbers, averages it, and gives the mean to all: as many numbers go over
        the wire as in a ring-allreduce, each rounded once on each of the two ways, and a sum cannot overflow.
        Horovod's own float16 allreduce rounds after each addition, and it has no bfloat16. Bits of bfloat16 travel as
        float16, which NCCL can send, too; nothing computes with them.
        """
        import tensorflow as tf

        short = tf.float16 if self._compression == "fp16" else tf.bfloat16
        sizes = [tensor.shape.num_elements() for tensor in tensors]
        missing = -sum(sizes) % self.ranks
        parts = [tf.reshape(tf.cast(tensor, short), [-1]) for tensor in tensors]
        flat = tf.concat([*parts, tf.zeros([missing], short)] if missing else parts, axis=0)
        slices = tf.split(tf.bitcast(self._hvd.alltoall(tf.bitcast(flat, tf.float16)), short), self.ranks)
        mean = tf.add_n([tf.cast(part, tf.float32) for part in slices]) / self.ranks
        gathered = tf.bitcast(self._hvd.allgather(tf.bitcast(tf.cast(mean, short), tf.float16)), short)
        gathered = tf.ensure_shape(gathered, [sum(sizes) + missing])
        parts = tf.split(gathered, [*sizes, missing])[: len(sizes)]
        return [tf.reshape(tf.cast(p, tf.float32), t.shape) for p, t in zip(parts, tensors, strict=True)]
