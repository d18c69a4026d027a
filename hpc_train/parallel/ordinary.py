"""Layers that are whole as the layers of Keras that they stand for, so that a file of them needs no hpc_train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from hpc_train.distributed.share import share_of
from hpc_train.parallel.attention import MultiHeadAttention
from hpc_train.parallel.dense import ColumnDense, RowDense
from hpc_train.parallel.divided import Divided
from hpc_train.parallel.dropout import Dropout
from hpc_train.parallel.embedding import Embedding
from hpc_train.parallel.sharded_embedding import ShardedEmbedding

_KERAS = {
    ColumnDense: keras.layers.Dense,
    RowDense: keras.layers.Dense,
    MultiHeadAttention: keras.layers.MultiHeadAttention,
    Embedding: keras.layers.Embedding,
    Dropout: keras.layers.Dropout,
    ShardedEmbedding: keras.layers.Embedding,
}


@contextmanager
def as_keras_layers(model: keras.Model) -> Iterator[bool]:
    """A context in which layers of `model` that are whole are of Keras's classes, with the same config and weights.

    It is for saving, in which nothing is called. Layers that code calls stay what they are, since that code makes them.

    Yields:
        Whether layers of ht.parallel are left.
    """
    changed: list[tuple[Any, type, dict[str, Any]]] = []
    try:
        for layer in _in_config(model):
            kind = _KERAS.get(type(layer))
            if kind is None or not _is_whole(layer):
                continue
            changed.append((layer, type(layer), vars(layer)))
            if isinstance(layer, ShardedEmbedding):
                others = vars(kind(layer.rows, layer.width, layer.embeddings_initializer, mask_zero=layer.mask_zero))
                _become(layer, kind, {**others, **vars(layer), "_embeddings": layer.embeddings})
            else:
                _become(layer, kind, vars(layer))
        yield any(isinstance(layer, Divided | Dropout | ShardedEmbedding) for layer in model._flatten_layers())
    finally:
        for layer, kind, attributes in changed:
            _become(layer, kind, attributes)


def _become(layer: Any, kind: type, attributes: dict[str, Any]) -> None:
    object.__setattr__(layer, "__class__", kind)
    object.__setattr__(layer, "__dict__", attributes)


def _is_whole(layer: Any) -> bool:
    if isinstance(layer, ShardedEmbedding):
        return layer.built and layer._outside is None and share_of(layer.embeddings) is None
    return layer.mesh is None


def _in_config(layer: Any) -> Iterator[Any]:
    """`layer`, and those that its config makes again, each once or more."""
    yield layer
    functional = keras.src.models.functional
    if isinstance(layer, functional.Functional):
        made = functional.functional_like_constructor(type(layer))
        inner = layer.layers if made else []
    elif isinstance(layer, keras.Sequential):
        inner = layer.layers
    else:
        inner = [layer.layer] if isinstance(layer, keras.layers.Wrapper) else []
    for one in inner:
        yield from _in_config(one)
