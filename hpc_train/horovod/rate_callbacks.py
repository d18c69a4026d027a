"""Callbacks that set the learning rate: a schedule over epochs, and the warm-up for many ranks."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import keras

from hpc_train.arguments import check_type
from hpc_train.errors import UserError
from hpc_train.horovod.ranks import joined
from hpc_train.horovod.settings import warm_up_share


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to `initial_lr` times `multiplier`; an epoch's logs get it as `lr`. Local.

    Args:
        initial_lr: The rate of the optimizer at first.
        multiplier: A function of the epoch, or a number m that means m ** (epoch - start_epoch).
        start_epoch, end_epoch: Epochs from the first to before the last have their rate set; None: to the end.
        staircase: Whether the rate is set once an epoch; else before each batch, for epoch + batch / steps_per_epoch.
        momentum_correction: Whether the momentum of SGD and RMSprop, which holds earlier rates, is multiplied by how
            much the rate changes: Goyal et al., arXiv:1706.02677, section 3, remark 2.
        steps_per_epoch: Batches of an epoch; None: as `fit` knows them.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        check_type(type(self).__name__, "initial_lr", initial_lr, Real, "a number")
        if not callable(multiplier):
            check_type(type(self).__name__, "multiplier", multiplier, Real, "a number, or a function of the epoch")
        self.initial_lr, self.start_epoch, self.end_epoch = float(initial_lr), start_epoch, end_epoch
        self.staircase, self.momentum_correction, self.steps_per_epoch = staircase, momentum_correction, steps_per_epoch
        self.multiplier = multiplier
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses what it cannot do.

        Raises:
            UserError: The optimizer's rate is a schedule of its own; its momentum cannot be corrected; or `fit` does
                not know the number of batches.
        """
        where = type(self).__name__
        if not isinstance(self._optimizer.learning_rate, keras.Variable):
            raise UserError(
                f"{where}: the optimizer's learning rate is a schedule or a function; give it a number, or leave this "
                "callback out"
            )
        if self.momentum_correction:
            _momenta(where, self._optimizer)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise UserError(f"{where}: steps_per_epoch: fit does not know how many batches an epoch has; give it")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate."""
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._set(self._epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._set(self._epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the rate."""
        if logs is not None:
            logs["lr"] = float(self._optimizer.learning_rate.numpy())

    @property
    def _optimizer(self) -> Any:
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _factor(self, epoch: float) -> float:
        if callable(self.multiplier):
            return float(self.multiplier(epoch))
        return float(self.multiplier ** (epoch - self.start_epoch))

    def _set(self, epoch: float) -> None:
        optimizer = self._optimizer
        old, new = float(optimizer.learning_rate.numpy()), self.initial_lr * self._factor(epoch)
        optimizer.learning_rate.assign(new)
        if self.momentum_correction and old > 0 and new != old:
            for variable in _momenta(type(self).__name__, optimizer):
                variable.assign(variable.value * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate evenly from `initial_lr` / ranks to `initial_lr` in the first epochs. Local.

    Args:
        initial_lr: The rate after the warm-up, for all ranks together.
        warmup_epochs: How many.
        momentum_correction, steps_per_epoch: As those of LearningRateScheduleCallback.
        verbose: 1: rank 0 prints when it is done.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        check_type(type(self).__name__, "warmup_epochs", warmup_epochs, Real, "a number above 0")
        if not warmup_epochs > 0:
            raise UserError(f"{type(self).__name__}: warmup_epochs: {warmup_epochs} is not allowed; allowed: above 0")
        self._world, self._warmup, self._verbose = joined(type(self).__name__), warmup_epochs, verbose
        super().__init__(
            initial_lr,
            self._share,
            end_epoch=warmup_epochs,  # type: ignore[arg-type]
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def _share(self, epoch: float) -> float:
        return warm_up_share(epoch + 1 / (self.steps_per_epoch or 1), self._warmup, self._world.size)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the rate, and prints at the end."""
        super().on_epoch_end(epoch, logs)
        if epoch == self._warmup - 1 and self._verbose and self._world.is_chief:
            rate = float(self._optimizer.learning_rate.numpy())
            print(f"\nEpoch {epoch + 1}: the learning rate is warmed up, to {rate:g}", flush=True)


def _momenta(where: str, optimizer: Any) -> list[Any]:
    """The variables of momentum, each a sum of earlier steps, their rates included; none where there is no momentum.

    Raises:
        UserError: What holds them in this optimizer is not known.
    """
    if not getattr(optimizer, "momentum", 0):
        return []
    if isinstance(optimizer, keras.optimizers.SGD):
        found = getattr(optimizer, "momentums", [])
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        found = getattr(optimizer, "_momentums", [])
    else:
        raise UserError(
            f"{where}: momentum_correction: the momentum of {type(optimizer).__name__} cannot be corrected; give "
            "momentum_correction=False"
        )
    return [variable for variable in found if variable is not None]
