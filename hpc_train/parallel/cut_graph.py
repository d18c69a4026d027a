"""Which activations of a functional or Sequential model ranks have a part of, and what may take those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hpc_train.errors import UserError
from hpc_train.parallel.dense import ColumnDense, RowDense
from hpc_train.parallel.divided import Divided
from hpc_train.parallel.dropout import Dropout
from hpc_train.parallel.elementwise import is_elementwise

Givers = list[str | None]
"""Of each tensor, which ColumnDense has cut it; None: it is whole on each rank."""


def check_graphs(model: keras.Model) -> None:
    """Whether what a ColumnDense leaves cut reaches nothing but what computes number by number, and then a RowDense.

    Of layers called by code (in a subclass of keras.Model or Layer) nobody knows which one gets what: of such a model
    the functional and Sequential parts are looked at, each by itself.

    Raises:
        UserError: It reaches something else, or is an output of `model`.
    """
    if (graph := _graph_of(model)) is not None:
        givers = _walk(graph, [])
        if (name := next(filter(None, givers), None)) is not None:
            raise UserError(f"{_of(name)} is an output of the model; set gather_output=True")
        return
    for part in _parts(model):
        _walk(part, [])


def _graph_of(layer: Any) -> Any:
    """The graph of a functional or Sequential model; None of other layers."""
    found = getattr(layer, "_functional", layer)
    return found if isinstance(found, keras.src.models.functional.Functional) else None


def _parts(layer: Any) -> list[Any]:
    """Graphs of the models that code calls, without those within one another."""
    found = []
    for own in layer._layers:
        graph = _graph_of(own)
        found += [graph] if graph is not None else _parts(own)
    return found


def _walk(graph: Any, inputs: Sequence[str | None]) -> Givers:
    """Of the outputs of `graph`, where its inputs are cut by these; none given: they are whole."""
    cut = {id(tensor): giver for tensor, giver in zip(graph.inputs, inputs, strict=False) if giver}
    for nodes in (graph._nodes_by_depth[depth] for depth in sorted(graph._nodes_by_depth, reverse=True)):
        for node in nodes:
            if not node.input_tensors:
                continue
            givers = _given(node.operation, node, [cut.get(id(tensor)) for tensor in node.input_tensors])
            cut.update((id(tensor), giver) for tensor, giver in zip(node.output_tensors, givers, strict=False) if giver)
    return [cut.get(id(tensor)) for tensor in graph.outputs]


def _given(layer: Any, node: Any, givers: Givers) -> Givers:
    """Of what `layer` gives at `node`, where it gets what `givers` have cut."""
    given = _passed_on(layer, node, givers)
    if (giver := next(filter(None, given), None)) is not None and _is_regularized(layer):
        raise UserError(
            f"{_shown(layer)}: activity_regularizer would count this rank's part of {_of(giver)} alone; leave it "
            "out, or set gather_output=True there"
        )
    return given


def _is_regularized(layer: Any) -> bool:
    """Whether `layer`, or one that it is made of, has a loss of its output; those of a graph have their own nodes."""
    own = layer._flatten_layers() if isinstance(layer, keras.layers.Layer) and _graph_of(layer) is None else []
    return any(one.activity_regularizer is not None for one in own)


def _passed_on(layer: Any, node: Any, givers: Givers) -> Givers:
    """The same, whatever losses `layer` has."""
    if isinstance(layer, keras.layers.TimeDistributed):
        return _given(layer.layer, node, givers)
    if (graph := _graph_of(layer)) is not None:
        return _walk(graph, givers)
    giver, outputs = next(filter(None, givers), None), len(node.output_tensors)
    if isinstance(layer, keras.layers.Wrapper) and isinstance(layer.layer, Divided):
        raise UserError(
            f"{_shown(layer)} looks at the weights of {layer.layer.name!r}, of which each rank holds a part; "
            "leave it out, or take the layer of keras.layers"
        )
    if isinstance(layer, RowDense):
        _check_row(layer, giver)
        return [None]
    if type(layer) in (Dropout, keras.layers.Dropout) and not layer.rate:
        return [giver]
    if isinstance(layer, Dropout):
        if giver is None:
            raise UserError(
                f"layer {layer.name!r} (ht.parallel.Dropout): its input is whole on each rank, and ranks would leave "
                "out different numbers of it; take keras.layers.Dropout"
            )
        return [giver]
    if giver is not None and is_elementwise(layer):
        _check_alike(layer, node, givers, giver)
        return [giver] * outputs
    if giver is not None:
        raise UserError(f"{_shown(layer)}: {_of(giver)} has parts on each rank, {_why_not(layer)}")
    return [layer.name if isinstance(layer, ColumnDense) and not layer.gather_output else None] * outputs


def _check_row(layer: RowDense, giver: str | None) -> None:
    if layer.input_is_parallel and giver is None:
        raise layer.refusal(
            "its inputs are whole on each rank, but input_is_parallel is True; put it behind a ColumnDense, or set "
            "input_is_parallel=False"
        )
    if not layer.input_is_parallel and giver is not None:
        raise layer.refusal(f"{_of(giver)} has parts on each rank, but input_is_parallel is False; leave it out")


def _check_alike(layer: Any, node: Any, givers: Givers, giver: str) -> None:
    """Whether what `layer` takes beside what `giver` has cut is a number, or is cut alike."""
    widths = {tensor.shape[-1] if tensor.shape else 1 for tensor in node.input_tensors}
    others = [*keras.tree.flatten((node.arguments.args, node.arguments.kwargs)), *vars(layer).values()]
    arrays = [x for x in others if not isinstance(x, keras.KerasTensor) and tuple(getattr(x, "shape", ()))]
    if None in givers or len(widths) > 1 or arrays:
        raise UserError(
            f"{_shown(layer)}: {_of(giver)} has parts on each rank, but what it is combined with is whole, or cut to "
            "other widths; set gather_output=True there, or have a ColumnDense of as many units give the other, too"
        )


def _why_not(layer: Any) -> str:
    if not isinstance(layer, keras.layers.Layer) or not layer.variables:
        gate = type(layer).__name__ in ("Split", "ArraySplit", "GetItem", "Glu")
        return (
            "but this may look at several numbers of a row; set gather_output=True there"
            f"{', or take two ColumnDense, one for a gate' if gate else ''}"
        )
    if isinstance(layer, keras.layers.Dropout):
        return "of which all would leave out the same numbers; take ht.parallel.Dropout"
    if all("seed_generator" in variable.path for variable in layer.variables):
        return "for which all would draw the same random numbers; set gather_output=True there"
    return "but this layer needs it whole; set gather_output=True there, or take ht.parallel.RowDense"


def _shown(layer: Any) -> str:
    kind = "layer" if isinstance(layer, keras.layers.Layer) else "operation"
    return f"{kind} {layer.name!r} ({type(layer).__name__})"


def _of(name: str) -> str:
    return f"what ColumnDense {name!r} gives"
