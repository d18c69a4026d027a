"""What a model with layers of ht.parallel cannot be, found before it is trained."""

from __future__ import annotations

from typing import Any

import keras

from hpc_train.config.specs import RunConfig
from hpc_train.errors import UserError
from hpc_train.parallel.attention import MultiHeadAttention
from hpc_train.parallel.dense import ColumnDense, RowDense
from hpc_train.parallel.divided import Divided
from hpc_train.parallel.dropout import Dropout
from hpc_train.parallel.sharded_embedding import ShardedEmbedding


def check_layers(model: keras.Model, config: RunConfig, ranks: int, own_step: bool) -> None:
    """Whether the divided layers of `model` can be trained as a job asks for.

    Args:
        ranks: Among which each copy of the model is divided. own_step: whether `model` has a train_step of its own.

    Raises:
        UserError: The strategy or the model's train_step passes by them; or, in a model whose layers are known to be
            called one after the other (functional, Sequential), one gets a part of what it needs as a whole.
    """
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
        for part in (layer for layer in model._flatten_layers() if isinstance(layer, keras.Model)):
            _check_graph(part)


def _shown(layer: keras.layers.Layer) -> str:
    return f"layer {layer.name!r} (ht.parallel.{type(layer).__name__})"


def _check_graph(model: keras.Model) -> None:
    """UserError where a layer gets parts of activations that it needs whole."""
    graph = getattr(model, "_functional", model)  # of a Sequential
    if not isinstance(graph, keras.src.models.functional.Functional):
        return
    cut_by: dict[int, str] = {}
    for nodes in (graph._nodes_by_depth[depth] for depth in sorted(graph._nodes_by_depth, reverse=True)):
        for node in nodes:
            layer = node.operation
            givers = [cut_by[id(tensor)] for tensor in node.input_tensors if id(tensor) in cut_by]
            is_cut = _check(layer, givers[0] if givers else None, len(node.input_tensors) > 0)
            cut_by.update((id(tensor), is_cut) for tensor in node.output_tensors if is_cut)
    for tensor in graph.outputs:
        if id(tensor) in cut_by:
            raise UserError(f"{_of(cut_by[id(tensor)])} is an output of the model; set gather_output=True")


def _check(layer: Any, giver: str | None, has_inputs: bool) -> str | None:
    """Which layer has cut what `layer` gives; None where it is whole. `giver`: which one what it gets."""
    if isinstance(layer, RowDense):
        if layer.input_is_parallel and giver is None and has_inputs:
            raise layer.refusal(
                "its inputs are whole on each rank, but input_is_parallel is True; put it behind a ColumnDense, or set "
                "input_is_parallel=False"
            )
        if not layer.input_is_parallel and giver is not None:
            raise layer.refusal(f"{_of(giver)} has parts on each rank, but input_is_parallel is False; leave it out")
        return None
    if isinstance(layer, Dropout):
        return giver
    if giver is not None and isinstance(layer, keras.layers.Layer):
        name = f"layer {layer.name!r} ({type(layer).__name__})"
        if layer.variables and not any("seed_generator" in v.path for v in layer.variables):
            raise UserError(
                f"{name}: {_of(giver)} has parts on each rank, but this layer needs it whole; set gather_output=True "
                "there, or take ht.parallel.RowDense"
            )
        if layer.variables:
            raise UserError(
                f"{name}: {_of(giver)} has parts on each rank, of which all would leave out the same numbers; take "
                "ht.parallel.Dropout"
            )
    if isinstance(layer, ColumnDense):
        return None if layer.gather_output else layer.name
    return None if isinstance(layer, MultiHeadAttention) else giver


def _of(name: str) -> str:
    return f"what ColumnDense {name!r} gives"
