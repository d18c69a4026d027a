"""LARS: SGD with momentum whose step is fitted to each layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import keras

from hpc_train.arguments import check_texts, check_type, checked_arguments
from hpc_train.errors import UserError

NOT_ADAPTED = (r"(^|/)bias$", r"batch_normalization|(^|/)(gamma|beta)$")
"""Paths of biases, and of what normalisation layers learn."""


@checked_arguments
@keras.saving.register_keras_serializable(package="hpc_train")
class LARS(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Layer-wise adaptive rate scaling for SGD with momentum and big batches.

    You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", arXiv:1708.03888, algorithm 1. For a
    variable w with gradient g:

        ratio = trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon), or 1 where |w| or |g| is 0
        m <- momentum * m + learning_rate * ratio * (g + weight_decay * w)
        w <- w - m

    Norms are Euclidean, of the whole variable, in float32 (of float64: in float64). A sparse gradient becomes dense. As
    norms need whole variables, it can't be used with several parameter servers that would cut one.

    Args:
        learning_rate: A rate, a Keras schedule, or a function without arguments. With the default trust_coefficient it
            is well above SGD's, and variables found by `exclude` have to bear it, too.
        momentum: From 0 to below 1.
        weight_decay: Of the variables whose step is fitted; part of the ratio, and scaled with it.
        trust_coefficient, epsilon: Those of the ratio.
        exclude: Regular expressions, searched for in a variable's path. Variables found take plain SGD with momentum:
            no ratio, and no weight decay. The default finds biases and normalisation layers.
        Others as in every Keras optimizer. Clipping comes before all this.

    Raises:
        UserError: A number out of range, or an expression that is none.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-9,
        exclude: Sequence[str] = NOT_ADAPTED,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str = "lars",
    ) -> None:
        weight_decay = 0.0 if weight_decay is None else weight_decay
        numbers = {"momentum": momentum, "weight_decay": weight_decay, "epsilon": epsilon}
        for what, value in {**numbers, "trust_coefficient": trust_coefficient}.items():
            check_type("LARS", what, value, Real, "a number")
        check_type("LARS", "name", name, str, "a text")
        if not isinstance(exclude, str):
            check_texts("LARS", "exclude", exclude)
        kinds = Real | keras.optimizers.schedules.LearningRateSchedule | Callable
        check_type("LARS", "learning_rate", learning_rate, kinds, "a rate, a Keras schedule, or a function")
        accumulated = gradient_accumulation_steps
        check_type("LARS", "gradient_accumulation_steps", accumulated, int | None, "a whole number, 2 or more, or None")
        # Keras's own weight decay is added to the gradient, not in the ratio: it is given none.
        try:
            super().__init__(
                learning_rate=float(learning_rate) if isinstance(learning_rate, int) else learning_rate,
                clipnorm=clipnorm,
                clipvalue=clipvalue,
                global_clipnorm=global_clipnorm,
                use_ema=use_ema,
                ema_momentum=ema_momentum,
                ema_overwrite_frequency=ema_overwrite_frequency,
                loss_scale_factor=loss_scale_factor,
                gradient_accumulation_steps=gradient_accumulation_steps,
                name=name,
            )
        except (TypeError, ValueError) as error:
            raise UserError(f"LARS: {error}") from None
        if not 0 <= momentum < 1:
            raise UserError(f"LARS: momentum is {momentum!r}; it must be 0 or more and below 1")
        for what, value in {"weight_decay": weight_decay, "epsilon": epsilon}.items():
            if not value >= 0:
                raise UserError(f"LARS: {what} is {value!r}; it must be 0 or more")
        if not trust_coefficient > 0:
            raise UserError(f"LARS: trust_coefficient is {trust_coefficient!r}; it must be above 0")
        self.exclude = [exclude] if isinstance(exclude, str) else list(exclude)
        for expression in self.exclude:
            try:
                re.compile(expression)
            except re.error as error:
                raise UserError(f"LARS: exclude: {expression!r} is not a regular expression: {error}") from None
        self.momentum, self.lars_weight_decay = float(momentum), float(weight_decay)
        self.trust_coefficient, self.epsilon = float(trust_coefficient), float(epsilon)

    def build(self, variables: list[Any]) -> None:
        """Makes one momentum for each variable, of its shape and dtype."""
        if self.built:
            return
        super().build(variables)
        self._adapted = [self.adapts(variable) for variable in variables]
        self._momenta = self.add_optimizer_variables(variables, "momentum")

    def adapts(self, variable: Any) -> bool:
        """Whether the step of `variable` is fitted to it."""
        return not any(re.search(expression, variable.path) for expression in self.exclude)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One update of one variable."""
        ops, dtype = keras.ops, variable.dtype
        gradient, weights = ops.cast(gradient, dtype), ops.convert_to_tensor(variable)
        rate = ops.cast(learning_rate, dtype)
        number = self._get_variable_index(variable)
        if self._adapted[number]:
            w_norm, g_norm = _norm(weights), _norm(gradient)
            below = g_norm + self.lars_weight_decay * w_norm + self.epsilon
            adapted = ops.logical_and(w_norm > 0, g_norm > 0)
            ratio = ops.where(adapted, self.trust_coefficient * w_norm / below, ops.ones_like(w_norm))
            gradient = (gradient + self.lars_weight_decay * weights) * ops.cast(ratio, dtype)
        momentum = self._momenta[number]
        self.assign(momentum, ops.cast(self.momentum, dtype) * ops.convert_to_tensor(momentum) + rate * gradient)
        self.assign_sub(variable, momentum)

    def get_config(self) -> dict[str, Any]:
        """What it can be made from again."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "weight_decay": self.lars_weight_decay,
            "trust_coefficient": self.trust_coefficient,
            "epsilon": self.epsilon,
            "exclude": list(self.exclude),
        }


def _norm(tensor: Any) -> Any:
    """The Euclidean norm: in 16 bits, its squares would overflow or vanish."""
    ops = keras.ops
    tensor = ops.convert_to_tensor(tensor)
    wide = tensor if keras.backend.standardize_dtype(tensor.dtype) == "float64" else ops.cast(tensor, "float32")
    return ops.sqrt(ops.sum(ops.square(wide)))
