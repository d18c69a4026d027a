"""TensorFlow and Keras, imported when something of them is first used: it takes seconds, and MPI is to start first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
else:
    from importlib import import_module
    from types import ModuleType

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self.__name__), name)
            setattr(self, name, value)  # found at once from now on
            return value

    keras, tf = _Lazy("keras"), _Lazy("tensorflow")

__all__ = ["keras", "tf"]
