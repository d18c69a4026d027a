"""What a synchronous strategy does inside the training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tensorflow as tf


class Strategy(Protocol):
    """Averages the tensors of one step over all ranks."""

    @property
    def ranks(self) -> int:
        """How many take part."""
        ...

    def average(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The mean of each tensor over all ranks. Called inside a tf.function; collective."""
        ...


class Alone:
    """The strategy of a single rank, which has nobody to average with."""

    ranks = 1

    def average(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors themselves."""
        return tensors
