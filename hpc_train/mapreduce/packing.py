"""What a reducer keeps as bytes: arrays, and what JSON can hold. Pure; nothing in it is code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hpc_train.errors import UserError

KINDS = "biufcSU"
"""Of arrays, numpy's: numbers and texts of one length."""


def pack(state: Any) -> bytes:
    """`state` as bytes: dicts with keys of text, lists, tuples, None, truth values, numbers, texts and arrays.

    Raises:
        TypeError: It holds something else; the message says what, and where.
    """
    arrays: list[np.ndarray] = []
    head = json.dumps(_plain(state, "", arrays)).encode()
    parts = [len(head).to_bytes(8, "little"), head]
    return b"".join([*parts, *(array.tobytes() for array in arrays)])


def sendable(state: Any, what: str = "a reducer's state") -> bytes:
    """`state` as `pack` gives it.

    Args:
        what: It is called so where it is refused.

    Raises:
        UserError: It holds what cannot be sent to another rank.
    """
    try:
        return pack(state)
    except TypeError as error:
        raise UserError(
            f"{what} has {error}; a state is made of arrays of numbers or texts, dicts with keys of text, lists, "
            "tuples, None, truth values, numbers and texts"
        ) from None


def unpack(data: bytes) -> Any:
    """What `pack` was given, in arrays of their own."""
    end = 8 + int.from_bytes(data[:8], "little")
    return _Unpacked(data, end).value(json.loads(data[8:end]))


def _plain(value: Any, where: str, arrays: list[np.ndarray]) -> Any:
    """`value` as JSON, in which what JSON does not know is a list that begins with a letter."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in KINDS:
        arrays.append(np.ascontiguousarray(value))
        return ["a", value.dtype.str, list(value.shape)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(each, f"{where}[{key!r}]", arrays) for key, each in value.items()}
    if isinstance(value, list | tuple):
        kind = "l" if isinstance(value, list) else "t"
        return [kind, *(_plain(each, f"{where}[{number}]", arrays) for number, each in enumerate(value))]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    if isinstance(value, dict):
        what = "a dict with keys that are no text"
    raise TypeError(f"{what}{f' at {where}' if where else ''}")


class _Unpacked:
    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start = data, start

    def value(self, plain: Any) -> Any:
        if isinstance(plain, dict):
            return {key: self.value(each) for key, each in plain.items()}
        if not isinstance(plain, list):
            return plain
        kind, *rest = plain
        if kind == "a":
            dtype, shape = np.dtype(rest[0]), tuple(rest[1])
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(self._data, dtype, count, self._start).reshape(shape).copy()
            self._start += array.nbytes
            return array
        values = [self.value(each) for each in rest]
        return tuple(values) if kind == "t" else values
