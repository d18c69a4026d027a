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

    def average(self, gradients: list[tf.Tensor], exact: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The mean of each tensor over all ranks, the same to the bit on all. Called inside a tf.function; collective.

        Args:
            gradients: May lose accuracy on the way, where the strategy compresses them. exact: may not.
        """
        ...


class Alone:
    """The strategy of a single rank, which has nobody to average with."""

    ranks = 1

    def average(self, gradients: list[tf.Tensor], exact: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The tensors themselves."""
        return gradients, exact
