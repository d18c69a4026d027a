"""What a reducer is, several as one, and one of a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from hpc_train.arguments import checked_arguments, not_allowed
from hpc_train.data.ragged import Ragged
from hpc_train.errors import UserError
from hpc_train.mapreduce.packing import sendable, unpack

S = TypeVar("S")


class Reducer(ABC, Generic[S]):
    """Sums values up, block by block, in a state of arrays and of what JSON can hold. Its methods are pure."""

    @abstractmethod
    def init(self) -> S:
        """The state of no values."""

    @abstractmethod
    def add(self, state: S, values: Any) -> S:
        """`state` and the values of a block: what map_fn has returned. May change `state`."""

    @abstractmethod
    def merge(self, first: S, second: S) -> S:
        """The state of all values of two, of which those of the first one come first. May change both."""

    @abstractmethod
    def result(self, state: S) -> Any:
        """What is returned of all values."""


@checked_arguments
class Custom(Reducer[Any]):
    """A reducer of functions.

    Args:
        init: `() -> state`. add: `(state, values) -> state`. merge: `(state, state) -> state`, of which the first one's
            rows come first. result: `(state) -> result`; None: the state itself.

    A state is made of arrays of numbers or texts, dicts with keys of text, lists, tuples, None, truth values, numbers
    and texts. All is merged in the same order on any number of ranks.

    Raises:
        UserError: An argument is no function, or a state holds something else.
    """

    def __init__(
        self,
        init: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None = None,
    ) -> None:
        given = {"init": init, "add": add, "merge": merge, "result": result}
        for name, function in given.items():
            if not callable(function) and not (name == "result" and function is None):
                raise not_allowed("Custom", name, function, "a function")
        self._init, self._add, self._merge, self._result = init, add, merge, result

    def init(self) -> Any:
        return _checked("init", self._init())

    def add(self, state: Any, values: Any) -> Any:
        return _checked("add", self._add(state, values))

    def merge(self, first: Any, second: Any) -> Any:
        return _checked("merge", self._merge(first, second))

    def result(self, state: Any) -> Any:
        return state if self._result is None else self._result(state)


def _checked(function: str, state: Any) -> Any:
    """`state` as another rank would get it."""
    return unpack(sendable(state, f"Custom: the state that `{function}` returns"))


class Together(Reducer[dict[str, Any]]):
    """Several reducers, each for the values of its name: map_fn returns a dict with all of these names."""

    def __init__(self, reducers: Mapping[str, Reducer[Any]]) -> None:
        self._reducers = dict(reducers)

    def init(self) -> dict[str, Any]:
        return {name: reducer.init() for name, reducer in self._reducers.items()}

    def add(self, state: dict[str, Any], values: Any) -> dict[str, Any]:
        given = sorted(values) if isinstance(values, Mapping) else type(values).__name__
        if not isinstance(values, Mapping) or set(values) != set(self._reducers):
            raise UserError(
                f"map_reduce: there are reducers for {sorted(self._reducers)}, but map_fn, or without one the input, "
                f"gives {given}; give values for each of them, and no others"
            )
        return {name: reducer.add(state[name], values[name]) for name, reducer in self._reducers.items()}

    def merge(self, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        return {name: reducer.merge(first[name], second[name]) for name, reducer in self._reducers.items()}

    def result(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name: reducer.result(state[name]) for name, reducer in self._reducers.items()}


def floats_of(where: str, argument: str, value: Any, allowed: str) -> np.ndarray:
    """An argument that is several numbers, float64 `[n]`."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise not_allowed(where, argument, value, allowed) from None
    if array.ndim != 1:
        raise not_allowed(where, argument, value, allowed)
    return array


def numbers(values: Any, reducer: str) -> np.ndarray:
    """`values` as an array of numbers `[rows, ...]`.

    Raises:
        UserError: They are none.
    """
    if isinstance(values, Ragged) and values.dtype.kind in "biuf":
        return values.values
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        what = "a single number" if array.ndim == 0 and array.dtype.kind in "biuf" else _named(values, array)
        raise UserError(
            f"{reducer} gets {what}; give an array of numbers with a row for each of the block's: of the dict of "
            "arrays that map_fn gets, return one"
        )
    return array


def _named(values: Any, array: np.ndarray) -> str:
    if isinstance(values, Ragged) or array.dtype.kind in "SU" or (array.size and isinstance(array.flat[0], str)):
        return "texts"
    return f"a {type(values).__name__}" if array.dtype.kind == "O" else f"an array of {array.dtype}"
