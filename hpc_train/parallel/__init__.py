"""Layers that are divided among ranks: in a job with run.mesh; anywhere else they are ordinary layers of Keras."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.parallel.attention import MultiHeadAttention
    from hpc_train.parallel.dense import ColumnDense, RowDense
    from hpc_train.parallel.dropout import Dropout
    from hpc_train.parallel.embedding import Embedding

_HOME = {
    "ColumnDense": "hpc_train.parallel.dense",
    "Dropout": "hpc_train.parallel.dropout",
    "Embedding": "hpc_train.parallel.embedding",
    "MultiHeadAttention": "hpc_train.parallel.attention",
    "RowDense": "hpc_train.parallel.dense",
}

__all__ = ["ColumnDense", "Dropout", "Embedding", "MultiHeadAttention", "RowDense"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
