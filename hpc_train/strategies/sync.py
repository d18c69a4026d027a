"""Synchronous training: gradients averaged over all ranks by Horovod's ring-allreduce.

Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv:1802.05799.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_train.cluster.world import World

if TYPE_CHECKING:
    import tensorflow as tf


class HorovodSync:
    """Averages with one grouped allreduce a step. Starting it is collective.

    Horovod's own wrappers (DistributedGradientTape, DistributedOptimizer) fail on Keras 3 variables (horovod#4290);
    the allreduce of raw gradients does not touch them.
    """

    def __init__(self, world: World) -> None:
        self._hvd = world.horovod()
        self.ranks = world.size

    def average(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The mean of each tensor over all ranks; those of one dtype in one allreduce, as Horovod wants it."""
        averaged: list[tf.Tensor] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            group = self._hvd.grouped_allreduce([tensors[place] for place in places], op=self._hvd.Average)
            for place, tensor in zip(places, group, strict=True):
                averaged[place] = tensor
        return averaged
