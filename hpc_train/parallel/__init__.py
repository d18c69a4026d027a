"""`ht.parallel`: layers of which ranks hold parts. Names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.parallel.attention import MultiHeadAttention
    from hpc_train.parallel.dense import ColumnDense, RowDense
    from hpc_train.parallel.dropout import Dropout
    from hpc_train.parallel.embedding import Embedding
    from hpc_train.parallel.sharded_embedding import ShardedEmbedding

_HOME = {
    "ColumnDense": "hpc_train.parallel.dense",
    "Dropout": "hpc_train.parallel.dropout",
    "Embedding": "hpc_train.parallel.embedding",
    "MultiHeadAttention": "hpc_train.parallel.attention",
    "RowDense": "hpc_train.parallel.dense",
    "ShardedEmbedding": "hpc_train.parallel.sharded_embedding",
}

__all__ = ["ColumnDense", "Dropout", "Embedding", "MultiHeadAttention", "RowDense", "ShardedEmbedding"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hpc_train.parallel' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
