"""The optimizer of a built-in model."""

from __future__ import annotations

from hpc_train.config.builtin_model import KerasModel
from hpc_train.lazy import keras

_CLASSES = {
    "adam": "Adam",
    "adamw": "AdamW",
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "ftrl": "Ftrl",
    "lion": "Lion",
}
"""Of keras.optimizers, by the name in a job file."""


def optimizer_of(settings: KerasModel) -> keras.optimizers.Optimizer:
    """A new one."""
    made: keras.optimizers.Optimizer = getattr(keras.optimizers, _CLASSES[settings.optimizer])(settings.learning_rate)
    return made
