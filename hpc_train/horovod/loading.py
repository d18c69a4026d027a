"""load_model: a saved model whose optimizer is distributed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError
from hpc_train.horovod.compression import Compression
from hpc_train.horovod.optimizer import DistributedOptimizer
from hpc_train.lazy import keras


def load_model(
    filepath: str | Path,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A model that Keras saved, with its optimizer's variables, whose optimizer is distributed. Every rank reads it.

    Args:
        filepath: A `.keras` file.
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Names and classes, or functions, of what else it does not know.
        compression: DistributedOptimizer's.
        legacy_opts: Not offered: Keras 3 has no legacy optimizers.

    Raises:
        UserError: As DistributedOptimizer. What keras.models.load_model raises.
    """
    if legacy_opts:
        raise UserError("hvd.load_model: legacy_opts: Keras 3 has no legacy optimizers; leave it out")
    objects = {cls.__name__: cls for cls in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if model.optimizer is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
