"""For which mesh of ranks a model is built: layers of which ranks hold parts cut themselves by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hpc_train.distributed.mesh import Mesh

_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextmanager
def building(mesh: Mesh | None) -> Iterator[None]:
    """A context in which a model is built that this rank of `mesh` trains; None: one that this process holds whole."""
    token = _mesh.set(mesh)
    try:
        yield
    finally:
        _mesh.reset(token)


def mesh_of_model() -> Mesh | None:
    """The mesh of the model that is built; None: this process holds it whole."""
    return _mesh.get()
