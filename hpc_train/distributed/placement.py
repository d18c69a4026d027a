"""On which ranks the model that is being built is to be held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from hpc_train.distributed.mesh import Mesh

Rows = Callable[[np.ndarray], np.ndarray]
"""Gives the rows of a table for ids, int64 `[N]`."""


@dataclass
class Room:
    """What this rank may hold of a model in the host's memory, in bytes; `left`: beside what layers have taken."""

    left: int


_current: ContextVar[Mesh | None] = ContextVar("placement", default=None)
_room: ContextVar[Room | None] = ContextVar("room", default=None)


@contextmanager
def placed(mesh: Mesh | None, room: Room | None = None) -> Iterator[None]:
    """A context in which a model is built, and tried out, of which this rank holds its part of `mesh`.

    What ranks would exchange is not exchanged in it: shapes and types are right, numbers are not.

    Args:
        mesh: None: this rank holds the whole model.
        room: Which large layers must fit into; None: nobody looks.
    """
    token, before = _current.set(mesh), _room.set(room)
    try:
        yield
    finally:
        _current.reset(token)
        _room.reset(before)


def room_here() -> Room | None:
    """What the model that is being built must fit into; None: it is not known, or variables take no memory of it."""
    return _room.get()


def placement() -> Mesh | None:
    """The mesh for which a model is being built; None: whoever builds one holds the whole of it."""
    return _current.get()


_outside: ContextVar[Mapping[str, Rows] | None] = ContextVar("outside", default=None)


@contextmanager
def tables_outside(rows: Mapping[str, Rows] | None = None) -> Iterator[None]:
    """A context in which a model is built that holds no rows of its tables (ht.parallel.ShardedEmbedding).

    Args:
        rows: What gives the rows, by the layer's name. Of a table without, shapes and types are right, numbers are not.
    """
    token = _outside.set(rows or {})
    try:
        yield
    finally:
        _outside.reset(token)


def outside() -> Mapping[str, Rows] | None:
    """What gives the rows of tables that a model is being built without; None: it has its tables itself."""
    return _outside.get()
