"""How much memory a traced step needs at once, read from its graph: an estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_train.lazy import tf

SAME_MEMORY = frozenset(
    "Identity IdentityN Reshape ExpandDims Squeeze StopGradient PreventGradient EnsureShape CheckNumerics "  # noqa: SIM905
    "PlaceholderWithDefault Bitcast".split()
)
"""Operations whose results are their inputs' memory."""
IN_PLACE = frozenset(
    "Abs Add AddN AddV2 BiasAdd Ceil Div DivNoNan Elu EluGrad Erf Exp Floor LeakyRelu LeakyReluGrad Log Log1p "  # noqa: SIM905
    "LogSoftmax Maximum Minimum Mul Neg RealDiv Relu Relu6 Relu6Grad ReluGrad Reciprocal Rsqrt RsqrtGrad Selu SeluGrad "
    "Sigmoid SigmoidGrad Softmax Softplus Softsign Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad".split()
)
"""Those that write where an input lies that nothing reads any more."""
NOTHING = frozenset(("Const", "ReadVariableOp", "Shape", "Size", "Rank"))
"""Those whose results are variables' own memory, or small."""
LOOPS = ("While", "StatelessWhile")
ADDED = {"TensorListPushBack": 1, "TensorListSetItem": 2}
"""Those that add an element to a list, and which input it is."""
GATHERED = ("Gather", "GatherV2", "ResourceGather")


def most_at_once(graph: Any, results: Sequence[Any] = ()) -> int:
    """The most bytes of tensors that are there at once while the operations of `graph` run in the order they have.

    A tensor is there from the operation that computes it to the last one that reads it; those that share memory count
    once. What is not counted: variables, constants, `results`, and what an operation needs beside its results.

    Args:
        results: Tensors that are somebody else's to count (gradients).
    """
    operations = graph.get_operations()
    last: dict[int, int] = {}
    owner: dict[int, Any] = {}
    for number, operation in enumerate(operations):
        for tensor in operation.inputs:
            last[id(tensor)] = number
        for place, tensor in enumerate(operation.outputs):
            owner[id(tensor)] = tensor
            if operation.type in SAME_MEMORY and place < len(operation.inputs):
                owner[id(tensor)] = owner.get(id(operation.inputs[place]), operation.inputs[place])
    # The last reader of a memory is that of all tensors which are in it.
    until: dict[int, int] = {}
    for key, tensor in owner.items():
        until[id(tensor)] = max(until.get(id(tensor), 0), last.get(key, 0))
    for tensor in results:
        until[id(owner.get(id(tensor), tensor))] = -1

    live: dict[int, int] = {}
    there = most = 0
    ends: dict[int, list[int]] = {}
    for number, operation in enumerate(operations):
        beside = 0
        for tensor in operation.outputs:
            key = id(tensor)
            if owner[key] is not tensor or until.get(key) == -1 or operation.type in NOTHING:
                continue
            nbytes = _nbytes(operation, tensor)
            if operation.type in IN_PLACE and (reused := _reused(operation, nbytes, live, until, owner, number)):
                there -= live.pop(reused)
            live[key] = nbytes
            there += nbytes
            ends.setdefault(max(until.get(key, number), number), []).append(key)
        if operation.type in LOOPS:
            beside = _inside(operation)
        most = max(most, there + beside)
        for key in ends.pop(number, ()):
            there -= live.pop(key, 0)
    return most


def _reused(
    operation: Any, nbytes: int, live: dict[int, int], until: dict[int, int], owner: dict[int, Any], number: int
) -> int | None:
    for tensor in operation.inputs:
        key = id(owner.get(id(tensor), tensor))
        if live.get(key) == nbytes and until.get(key) == number:
            return key
    return None


def _nbytes(operation: Any, tensor: Any) -> int:
    if tensor.dtype == tf.variant:
        return _list(operation, tensor.value_index) if operation.type in LOOPS else 0
    if tensor.dtype == tf.resource:
        return 0
    return most_elements(tensor) * (tensor.dtype.size or 0)


def most_elements(tensor: Any) -> int:
    """How many elements a tensor of a graph may have: where its rows are not known, as many as what it is made of."""
    if tensor.shape.rank is None:
        return 0
    known = math.prod(size or 1 for size in tensor.shape[1:])
    return known * (_rows(tensor, set()) or 0) if tensor.shape.rank else 1


def _rows(tensor: Any, seen: set[int]) -> int | None:
    """The most rows of a tensor: those of what it is made of, and of gathered ones as many as there are indices."""
    if not tensor.shape.rank:
        return None
    if tensor.shape[0] is not None:
        return int(tensor.shape[0])
    if id(tensor) in seen:
        return None
    seen.add(id(tensor))
    inputs = tensor.op.inputs[1:2] if tensor.op.type in GATHERED else tensor.op.inputs
    return max((rows for one in inputs if (rows := _rows(one, seen)) is not None), default=None)


def _list(loop: Any, place: int) -> int:
    """Bytes of a list that a loop fills: an element for each time that it runs, where that is known; else one."""
    body = _body(loop)
    added = None if body is None else _computed(body.outputs[place])
    if added is None or added.type not in ADDED:
        return 0
    element = added.inputs[ADDED[added.type]]
    if element.dtype == tf.variant or _computed(element).type in NOTHING:
        return 0
    return _times(loop.inputs[1]) * most_elements(element) * (element.dtype.size or 0)


def _computed(tensor: Any) -> Any:
    """The operation whose memory a tensor is."""
    while tensor.op.type in SAME_MEMORY and len(tensor.op.inputs):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor.op


def _times(most: Any) -> int:
    """How often a loop runs at most, where that is known; else once."""
    value = tf.get_static_value(most)
    if value is None and most.op.type == "Max":  # of Keras's recurrent layers
        value = tf.get_static_value(most.op.inputs[0])
    return 1 if value is None else max(1, int(np.max(value)))


def _inside(loop: Any) -> int:
    body = _body(loop)
    return 0 if body is None else most_at_once(body)


def _body(loop: Any) -> Any:
    """The graph of what a loop repeats."""
    found = loop.graph._get_function(loop.get_attr("body").name)
    return getattr(found, "graph", None)
