"""How modules are imported fast; and TensorFlow and Keras when something of them is first used.

Importing them takes seconds, and MPI is to start first.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

DEFERRED = frozenset({"keras.wrappers", "keras.visualization", "keras.src.visualization"})
"""Of Keras, what training does not use and what imports Matplotlib, scikit-learn and SciPy: a second of each rank."""

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
else:
    from importlib import import_module

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if self.__name__ not in sys.modules:
                defer_unused()
                with importing():
                    import_module(self.__name__)
                gc.freeze()  # else the next collection looks through a million objects that stay
            value = getattr(import_module(self.__name__), name)
            setattr(self, name, value)  # found at once from now on
            return value

    keras, tf = _Lazy("keras"), _Lazy("tensorflow")

__all__ = ["defer_unused", "importing", "keras", "tf"]


@contextmanager
def importing() -> Iterator[None]:
    """A context for imports, in which no garbage is collected: nearly all of what they make stays, and is much."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def defer_unused() -> None:
    """From now on, modules in DEFERRED are not run when they are imported, but when something of them is first used."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds what is deferred, where the path has it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Deferring(spec.loader)
        return spec


class _Deferring(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_run"] = self._loader.exec_module


class _Deferred(ModuleType):
    """A module that runs when it is asked for what only that can give: so not for __file__, as inspect asks all."""

    _lock = RLock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._load()
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        self._load()
        return dir(self)

    def _load(self) -> None:
        with self._lock:
            if (run := self.__dict__.pop("_run", None)) is not None:
                try:
                    run(self)
                except BaseException:  # the next use tries again, and fails by the same name
                    self.__dict__["_run"] = run
                    raise
        self.__class__ = ModuleType  # type: ignore[assignment]
