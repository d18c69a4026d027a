"""What a model with layers of ht.parallel cannot be, found before it is trained."""

from __future__ import annotations

import keras

from hpc_train.config.run_config import RunConfig
from hpc_train.errors import UserError
from hpc_train.parallel.cut_graph import check_graphs
from hpc_train.parallel.divided import Divided
from hpc_train.parallel.dropout import Dropout
from hpc_train.parallel.sharded_embedding import ShardedEmbedding


def check_layers(model: keras.Model, config: RunConfig, ranks: int, own_step: bool) -> None:
    """Whether the divided layers of `model` can be trained as a job asks for.

    Args:
        ranks: Among which each copy of the model is divided. own_step: whether `model` has a train_step of its own.

    Raises:
        UserError: There are none to divide; the strategy or the model's train_step passes by them; or, in a model whose
            layers are known to be called one after the other (functional, Sequential), one gets a part of what it needs
            as a whole.
    """
    if ranks > 1 and not any(isinstance(layer, Divided) and layer.mesh for layer in model._flatten_layers()):
        raise UserError(
            f"run.mesh: model: {ranks}: the model has no layer that a mesh divides: the {ranks} ranks of a copy would "
            "each do all its work; make layers of ht.parallel (ColumnDense, RowDense, MultiHeadAttention, Embedding) "
            "in its function, or leave `model` out of run.mesh, of which a ShardedEmbedding needs nothing"
        )
    divided = [layer for layer in model._flatten_layers() if isinstance(layer, Divided | Dropout)]
    spread = [layer for layer in model._flatten_layers() if isinstance(layer, ShardedEmbedding)]
    if not divided and not spread:
        return
    first = _shown((divided or spread)[0])
    if config.strategy == "async":
        raise UserError(
            f"{first}: is for strategy: sync: workers of an asynchronous job compute each in its own time, and cannot "
            "divide a layer; take strategy: sync, or the layers of keras.layers of the same names (Embedding in place "
            "of ShardedEmbedding; parameter servers hold parts of its rows)"
        )
    if spread and config.chief == "dedicated":
        raise UserError(
            f"{_shown(spread[0])}: the ranks that hold its rows save and evaluate together, and a dedicated chief does "
            "so by itself; set run.chief: train"
        )
    if not divided:
        return
    if ranks > 1 and own_step:
        raise UserError(
            f"{first}: {type(model).__name__} has a train_step of its own, which may pass by what divided layers "
            "exchange (run.mesh); leave it to Keras's train_step, or set run.mesh: {model: 1}"
        )
    if ranks > 1:
        check_graphs(model)


def _shown(layer: keras.layers.Layer) -> str:
    return f"layer {layer.name!r} (ht.parallel.{type(layer).__name__})"
