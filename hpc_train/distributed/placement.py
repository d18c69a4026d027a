"""On which ranks the model that is being built is to be held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hpc_train.distributed.mesh import Mesh

_current: ContextVar[Mesh | None] = ContextVar("placement", default=None)


@contextmanager
def placed(mesh: Mesh | None) -> Iterator[None]:
    """A context in which a model is built, and tried out, of which this rank holds its part of `mesh`.

    What ranks would exchange is not exchanged in it: shapes and types are right, numbers are not.

    Args:
        mesh: None: this rank holds the whole model.
    """
    token = _current.set(mesh)
    try:
        yield
    finally:
        _current.reset(token)


def placement() -> Mesh | None:
    """The mesh for which a model is being built; None: whoever builds one holds the whole of it."""
    return _current.get()
