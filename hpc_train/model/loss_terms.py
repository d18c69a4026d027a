"""The terms that a loss is made of, and what each divides by: so that ranks and pieces of a batch weigh what they have.

Keras's losses divide by how many values are valid (masks, `ignore_class`), by the sum of their weights
(`mean_with_sample_weight`), or by nothing (`sum`); each rank, and each piece of a batch, has numbers of its own there.
The gradient of the whole batch is the sum of the parts' numerators over the sum of their denominators, term by term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from hpc_train.lazy import keras, tf

Meaning = Literal["mean", "sum"]
Exchange = Callable[[Any], Any]
"""The mean of a vector over all ranks. Collective; called inside a tf.function."""


@dataclass(frozen=True)
class LossPlan:
    """What is known of a loss before it is traced; the same on all ranks.

    Attributes:
        parts: How many ranks share a batch.
        divisors: How many terms divide by a number that depends on the rows. sums: whether some divide by none.
        numbers: What each term means that is one number already where Keras gets it (a loss function that returns one
            number for a batch, `add_loss` of one): a mean over rows, or a sum.
        uneven: Whether batches may have other shapes on other ranks.
        along: Whether one term is all of the loss that depends on rows, so that the number that it divides by can be
            the weight of all gradients.
    """

    parts: int = 1
    divisors: int = 0
    sums: bool = False
    numbers: tuple[Meaning, ...] = ()
    uneven: bool = False
    along: bool = False

    @property
    def exchanged(self) -> int:
        """How many numbers ranks exchange before gradients are computed."""
        return 0 if self.parts == 1 or self.along else self.divisors


@dataclass
class _Weighed:
    """A term whose gradient gets a weight, known once all terms are.

    Attributes:
        coefficient: What the loss multiplies the term with, found when gradients are computed.
    """

    value: Any
    divisor: Any | None
    weight: Any = 1.0
    coefficient: Any | None = None


@dataclass
class LossTerms:
    """Records the terms of a loss while it is computed inside `recorded`, and weighs their gradients.

    Attributes:
        own: Terms that divide by numbers of their own. sums: terms that divide by nothing.
        numbers: Terms that were one number when Keras got them, or some that are not of rows (one for each class).
        fixed: How many divide by what is the same for all. rows: of the batch; None: not known.
        at_once: Where given, values themselves are weighed, and denominators exchanged as terms come: for a step that
            takes gradients by itself.
    """

    plan: LossPlan
    at_once: Exchange | None = None
    own: list[_Weighed] = field(default_factory=list)
    sums: list[_Weighed] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    fixed: int = 0
    rows: int | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """A context in which Keras's losses and `add_loss` report their terms."""
        module = keras.src.losses.loss
        reduce, add_loss = module.reduce_weighted_values, keras.layers.Layer.add_loss

        def reduce_recorded(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str | None = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
            loss = reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
            if reduction in (None, "none") or keras.utils.is_keras_tensor(loss) or loss.shape.rank != 0:
                return loss
            values = tf.convert_to_tensor(values)
            if values.shape.rank == 0 or (self.rows and values.shape[0] and values.shape[0] % self.rows):
                return self._number(loss)
            if reduction == "sum":
                return self._sum(loss)
            return self._mean(loss, values, sample_weight, mask, reduction)

        def add_recorded(layer: Any, loss: Any) -> None:
            add_loss(layer, tf.nest.map_structure(self._added, loss))

        module.reduce_weighted_values, keras.layers.Layer.add_loss = reduce_recorded, add_recorded
        try:
            yield
        finally:
            module.reduce_weighted_values, keras.layers.Layer.add_loss = reduce, add_loss

    def _mean(self, loss: Any, values: Any, sample_weight: Any, mask: Any, reduction: str) -> Any:
        exact = tf.float64 if loss.dtype == tf.float64 else tf.float32
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            weights = tf.cast(sample_weight, exact)
            if mask is not None:
                mask, weights = keras.src.losses.loss.squeeze_or_expand_to_same_rank(tf.cast(mask, exact), weights)
                weights = weights * mask
            return self._divided(loss, tf.reduce_sum(weights))
        if mask is not None:
            valid = tf.reduce_sum(tf.cast(mask, exact))
            # The part that is valid, not its number: gradients, which it is multiplied with, keep their magnitude.
            return self._divided(loss, valid if self.plan.uneven else valid / tf.cast(tf.size(mask), exact))
        if self.plan.uneven:
            return self._divided(loss, tf.cast(tf.size(values), exact))
        self.fixed += 1
        return loss

    def _added(self, loss: Any) -> Any:
        if not tf.is_tensor(loss) or keras.utils.is_keras_tensor(loss):
            return loss
        return self._number(loss) if loss.shape.rank == 0 else self._sum(loss)

    def _number(self, loss: Any) -> Any:
        place = len(self.numbers)
        self.numbers.append(loss)
        return self._sum(loss) if self.plan.numbers[place : place + 1] == ("sum",) else loss

    def _divided(self, loss: Any, divisor: Any) -> Any:
        if self.at_once is not None:
            mean = self.at_once(tf.reshape(divisor, [1]))[0]
            return loss * tf.cast(tf.math.divide_no_nan(divisor, mean), loss.dtype)
        term = _Weighed(loss, divisor)
        self.own.append(term)
        return _hooked(term)

    def _sum(self, loss: Any) -> Any:
        if self.at_once is not None:
            return loss * tf.cast(self.plan.parts, loss.dtype)
        term = _Weighed(loss, None)
        self.sums.append(term)
        return _hooked(term)

    def corrected(self, loss: tf.Tensor, scale: Any = None) -> tf.Tensor:
        """`loss` with the weights that gradients have got. For after they were computed.

        Args:
            scale: What the loss was multiplied with before gradients were asked for.
        """
        for term in (*self.own, *self.sums):
            if term.coefficient is not None and not (isinstance(term.weight, float) and term.weight == 1.0):
                by = term.coefficient if scale is None else term.coefficient / tf.cast(scale, term.coefficient.dtype)
                more = tf.cast(by, loss.dtype) * tf.cast(term.value, loss.dtype)
                loss += tf.reduce_sum(more) * (tf.cast(term.weight, loss.dtype) - 1)
        return loss


def _hooked(term: _Weighed) -> Any:
    """The term's value, whose gradient is multiplied with the term's weight as that is when gradients are computed."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def hook(value: Any) -> Any:
        def gradient(by: Any) -> Any:
            term.coefficient = by
            return by * tf.cast(term.weight, by.dtype)

        return tf.identity(value), gradient

    return hook(term.value)
