"""A learning rate that rises in the first steps, then follows another schedule."""

from __future__ import annotations

from typing import Any

import keras

from hpc_train.arguments import checked_arguments, not_allowed


@checked_arguments
@keras.saving.register_keras_serializable(package="hpc_train")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Rises linearly from `start` to what `then` begins with, and goes on with `then`.

    Step s < `warmup_steps` gets start + (then(0) - start) * (s + 1) / warmup_steps: so the first step already learns
    something, and step `warmup_steps - 1` has the full rate. From step `warmup_steps` on the rate is
    then(s - warmup_steps): a schedule is given whole, moved by the warm-up; its own steps are those after the warm-up.
    Gradual warm-up: Goyal et al., arXiv:1706.02677, section 2.2.

    Args:
        then: A rate, or a schedule such as keras.optimizers.schedules.CosineDecay.
        warmup_steps: 0 leaves the warm-up out.
        start: Rate from which it rises.

    Raises:
        UserError: A rate or steps below 0, or of another kind.
    """

    def __init__(self, then: Any, warmup_steps: int, start: float = 0.0, name: str = "warm_up") -> None:
        if isinstance(then, dict):
            then = keras.saving.deserialize_keras_object(then)
        is_schedule = isinstance(then, keras.optimizers.schedules.LearningRateSchedule)
        if not is_schedule and (isinstance(then, bool) or not isinstance(then, int | float) or then < 0):
            raise not_allowed("WarmUp", "then", then, "a rate, 0 or more, or a Keras schedule")
        if isinstance(warmup_steps, bool) or not isinstance(warmup_steps, int) or warmup_steps < 0:
            raise not_allowed("WarmUp", "warmup_steps", warmup_steps, "a whole number, 0 or more")
        if isinstance(start, bool) or not isinstance(start, int | float) or start < 0:
            raise not_allowed("WarmUp", "start", start, "a rate, 0 or more")
        self.then = then if is_schedule else float(then)
        self.warmup_steps, self.start, self.name = warmup_steps, float(start), name

    def __call__(self, step: Any) -> Any:
        """The rate of `step`, a scalar tensor."""
        ops = keras.ops
        step = ops.cast(step, "float32")
        after = self._then(ops.maximum(step - self.warmup_steps, 0.0))
        if not self.warmup_steps:
            return after
        rising = self.start + (self._then(ops.zeros_like(step)) - self.start) * (step + 1) / self.warmup_steps
        return ops.where(step < self.warmup_steps, rising, after)

    def _then(self, step: Any) -> Any:
        rate = self.then(step) if callable(self.then) else self.then
        return keras.ops.cast(rate, "float32")

    def get_config(self) -> dict[str, Any]:
        """What it can be made from again, with a schedule as Keras writes it."""
        then = keras.saving.serialize_keras_object(self.then) if callable(self.then) else self.then
        return {"then": then, "warmup_steps": self.warmup_steps, "start": self.start, "name": self.name}
