"""Calls of one tf.function, again and again: what TensorFlow looks up for each of them is looked up once."""

from __future__ import annotations

from typing import Any

from hpc_train.lazy import tf
from hpc_train.telemetry.start_timeline import start_timeline

MOST_KINDS = 256
"""Of batches that are remembered."""


class GraphCall:
    """A tf.function that is called with tensors alone, which it returns, too.

    TensorFlow finds the graph for a call's arguments by their types, in some 0.3 ms of Python. Here it is remembered by
    the shapes and dtypes of the tensors, and called directly. Calls with something else among the arguments, as a
    ragged tensor, are TensorFlow's own.

    Args:
        function: Its arguments have one structure in all calls.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._graphs: dict[Any, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        tensors = tf.nest.flatten(arguments)
        if not all(isinstance(tensor, tf.Tensor) for tensor in tensors):
            return self._function(*arguments)
        kind = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
        graph = self._graphs.get(kind)
        if graph is None:
            if len(self._graphs) == MOST_KINDS:
                return self._function(*arguments)
            with start_timeline.within("trace"):
                graph = self._graphs[kind] = self._function.get_concrete_function(*arguments)
        return graph._call_flat(tensors, graph.captured_inputs)
