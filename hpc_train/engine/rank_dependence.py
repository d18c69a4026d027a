"""Which tensors of a training step depend on this rank's rows, otherwise than by gradients averaged over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

DRAWN = ("Random", "Truncated", "Multinomial", "Stateful", "Rng", "PyFunc", "EagerPyFunc", "NumpyFunction")
"""How the names of operations begin that give each rank something of its own."""


class RankDependence:
    """Follows tensors of a function's graph back to where they come from.

    Args:
        graph: The step's. per_rank: variables that are not the same on all ranks (random states, those of layers).
    """

    def __init__(self, graph: Any, per_rank: Iterable[Any]) -> None:
        self._graph = graph
        captured = {id(inner) for _, inner in graph.captures}
        self._rows = {id(tensor) for tensor in graph.inputs if id(tensor) not in captured}
        self._per_rank = {id(variable.value.handle) for variable in per_rank}
        self._alike: set[int] = set()
        self._parts: dict[int, str] = {}
        self._kept: list[Any] = []

    def averaged(self, tensors: Iterable[Any]) -> None:
        """These are the same on all ranks, whatever they were computed from."""
        for tensor in tensors:
            self._alike.add(id(tensor))
            self._kept.append(tensor)  # so that no other tensor gets its id

    def part(self, name: str, tensors: Iterable[Any]) -> None:
        """These are gradients of the part of a variable that this rank alone has, averaged already."""
        for tensor in tensors:
            self._parts[id(tensor)] = name
            self._kept.append(tensor)

    def of(self, tensor: Any) -> bool:
        """Whether `tensor`, of the step's graph or of one inside it, depends on this rank's rows or parts."""
        return any(map(self._is_own, self._reached(tensor)))

    def parts(self, tensor: Any) -> set[str]:
        """The variables of whose gradients this rank's parts have gone into `tensor`."""
        return {self._parts[id(one)] for one in self._reached(tensor) if id(one) in self._parts}

    def _is_own(self, tensor: Any) -> bool:
        if id(tensor) in self._rows or id(tensor) in self._parts or tensor.op.type.startswith(DRAWN):
            return True
        return id(self._outside(tensor)) in self._per_rank

    def _reached(self, tensor: Any) -> Iterator[Any]:
        """`tensor` and what it is computed from, as far as to averages."""
        reached, todo = set(), [tensor]
        while todo:
            one = todo.pop()
            if id(one) in reached or id(one) in self._alike:
                continue
            reached.add(id(one))
            yield one
            if id(one) in self._parts:
                continue
            outside = self._outside(one)
            if outside is None:
                todo += [*one.op.inputs]
            elif hasattr(outside, "op") and getattr(outside, "graph", None) is not None:
                todo.append(outside)

    def assigned(self, variable: Any) -> bool:
        """Whether the step gives a Keras variable values that depend on this rank's rows."""
        handle = variable.value.handle
        for outer, inner in self._graph.captures:
            if outer is handle:
                for operation in inner.consumers():
                    given = [tensor for tensor in operation.inputs if tensor is not inner]
                    if operation.type != "ReadVariableOp" and any(map(self.of, given)):
                        return True
        return False

    def _outside(self, tensor: Any) -> Any | None:
        """What a captured tensor is outside of its graph; None where it is not captured."""
        if tensor.op.type != "Placeholder":
            return None
        return next((outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor), None)
