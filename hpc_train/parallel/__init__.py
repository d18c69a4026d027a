"""`ht.parallel`: layers of which ranks hold parts. Names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.parallel.sharded_embedding import ShardedEmbedding

_HOME = {
    "ShardedEmbedding": "hpc_train.parallel.sharded_embedding",
}

__all__ = ["ShardedEmbedding"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hpc_train.parallel' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
