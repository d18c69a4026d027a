"""Horovod's callbacks for Keras `fit`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import keras

from hpc_train.errors import UserError
from hpc_train.horovod.names import NOT_OFFERED
from hpc_train.horovod.ranks import joined, library
from hpc_train.horovod.rate_callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback
from hpc_train.horovod.settings import different, refuse_unused, root_of
from hpc_train.horovod.variables import broadcast_variables, of_tensorflow

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the variables that rank `root_rank` has in model and optimizer, once: before the first step.

    The optimizer is built by then; a model that is not, after the first step. Random states of layers such as Dropout
    stay those of each rank. A model that was compiled for XLA is trained without it, with a warning.

    Args:
        device: Not offered.
        local_variables: Variables, or one, that stay those of each rank.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        where = "BroadcastGlobalVariablesCallback"
        refuse_unused(where, device=device)
        self._size = joined(where).size
        self._root, self._done = root_of(where, root_rank, self._size), False
        given: Iterable[Any] = local_variables if isinstance(local_variables, list | tuple | set) else [local_variables]
        self._local = [of_tensorflow(variable) for variable in given if variable is not None]

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable as each rank has it."""
        self._local.append(of_tensorflow(var))

    def set_model(self, model: Any) -> None:
        """Keras calls it before it makes the function that trains."""
        super().set_model(model)
        if self._size > 1 and getattr(model, "jit_compile", False):
            model.jit_compile = False
            if joined("set_model").is_chief:
                warnings.warn(
                    "jit_compile: XLA cannot compile what ranks exchange; the model is trained without it. "
                    "model.compile(jit_compile=False) says so",
                    stacklevel=2,
                )

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts where the model is built. Collective."""
        if self._done or not self.model.built:
            return
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts where that was not done before. Collective."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._done = True
        optimizer = self.model.optimizer
        found = [*self.model.variables, *(optimizer.variables if optimizer is not None else [])]
        kept = [*self._local, *(of_tensorflow(one) for one in found if _is_random_state(one))]
        targets = [of_tensorflow(one) for one in found]
        broadcast_variables([t for t in targets if not any(t is one for one in kept)], self._root)


def _is_random_state(variable: Any) -> bool:
    return str(getattr(variable, "path", "")).rpartition("/")[2].startswith("seed_generator_state")


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces each number in an epoch's logs by its mean over all ranks, each rank counting as much.

    What stands behind it in the list of callbacks sees the mean, and so does the history that `fit` returns.

    Args:
        device: Not offered.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        refuse_unused("MetricAverageCallback", device=device)
        joined("MetricAverageCallback")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages `logs` in place. Collective.

        Raises:
            UserError: The ranks do not have the same metrics.
        """
        hvd = library("MetricAverageCallback")
        if hvd is None:
            return
        logs = {} if logs is None else logs
        own = {name: float(value) for name, value in logs.items()}
        of_ranks = hvd.allgather_object(own, name="MetricAverageCallback")
        if lacking := different(of_ranks):
            raise UserError(
                f"MetricAverageCallback: epoch {epoch}: {lacking}; give all ranks the same metrics and validation_data"
            )
        for name in logs:
            logs[name] = math.fsum(one[name] for one in of_ranks) / len(of_ranks)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    elastic = NOT_OFFERED["elastic"] if "Elastic" in name or "State" in name else None
    way = elastic or NOT_OFFERED.get(name) or f"offered: {', '.join(__all__)}"
    raise AttributeError(f"{__name__}.{name} is not offered; {way}")
