"""Dropout of activations that are divided among ranks."""

from __future__ import annotations

from typing import Any

import keras

from hpc_train.arguments import checked_arguments
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import placement
from hpc_train.parallel.divided import of_arguments

_APART = 0x9E3779B1
"""By how much the seeds of parts differ."""


@checked_arguments
@keras.saving.register_keras_serializable(package="hpc_train")
class Dropout(keras.layers.Dropout):  # type: ignore[misc]
    """keras.layers.Dropout for activations that are divided, as between ColumnDense and RowDense.

    Ranks of a model group have the same random states, so that keras.layers.Dropout leaves out the same numbers of
    activations that are whole on all of them. Of divided ones each rank has other numbers, and here other masks;
    what is whole would differ between ranks, and is refused where a job can see it.

    Args:
        rate, noise_shape, seed: As those of keras.layers.Dropout. Others as in every Keras layer.
    """

    def __init__(self, rate: float, noise_shape: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        try:
            super().__init__(rate, noise_shape=noise_shape, seed=seed, **kwargs)
        except Exception as error:
            raise of_arguments(type(self), kwargs, error) from None
        mesh = placement()
        self.mesh: Mesh | None = mesh if mesh is not None and mesh.model > 1 else None

    def call(self, inputs: Any, training: bool = False) -> Any:
        """`inputs` with some numbers set to 0 and the others scaled, in training."""
        if self.mesh is None or not training or self.rate == 0:
            return super().call(inputs, training=training)
        seeds = _SeedsOfPart(self.seed_generator, self.mesh.model_index)
        return keras.src.backend.random.dropout(inputs, self.rate, noise_shape=self.noise_shape, seed=seeds)


class _SeedsOfPart(keras.random.SeedGenerator):  # type: ignore[misc]
    """Another generator's seeds, which go on as ever, other ones for each part."""

    def __init__(self, generator: Any, part: int) -> None:
        self._generator, self._part = generator, part

    def next(self, ordered: bool = True) -> Any:
        seed = self._generator.next(ordered)
        return seed + keras.ops.convert_to_tensor([self._part * _APART % 2**31, 0], seed.dtype)
