"""Column: what is read of a dataset, or of a group that holds rows of different lengths. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
"""What TensorFlow has a type for."""

ENDS, VALUES = "/ends", "/values"
"""The datasets of a group that holds rows of different lengths, as this package writes it."""
LENGTH = "/length"
"""After the name of a dataset whose rows have different lengths: these, as a column."""


@dataclass(frozen=True)
class Column:
    """A dataset that all shards have: `[rows, *shape]` of `dtype` (numpy's name for it; of texts that of bytes, "S16").

    Attributes:
        given: The name of the model's input or output that it is for, where the user gives one.
        kind: "ragged": rows have different lengths, each `[length, *shape]`, or as texts `shape`, of "S1" then;
            "length": it has the lengths of another column's rows; else "numbers", texts of one length, too.
        mean_bytes: Of a ragged column: what a row takes on average.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    given: str | None = None
    kind: Literal["numbers", "ragged", "length"] = "numbers"
    mean_bytes: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        """What it is called in a batch that is a dict."""
        return self.name.replace("/", "_") if self.given is None else self.given

    @property
    def is_text(self) -> bool:
        return self.dtype.startswith("S")

    @property
    def takes_padding(self) -> bool:
        """Whether its rows are numbers, and of different lengths."""
        return self.kind == "ragged" and not self.is_text

    def __str__(self) -> str:
        rows = f"[rows{''.join(f', {n}' for n in self.shape)}]"
        if self.kind == "ragged":
            return f"texts {rows}" if self.is_text else f"{self.dtype} [rows, any{rows.removeprefix('[rows')}"
        return f"texts of {self.dtype.removeprefix('S')} bytes {rows}" if self.is_text else f"{self.dtype} {rows}"

    @property
    def value_bytes(self) -> int:
        """What a value of a ragged column takes, and a row of any other."""
        ragged_text = self.kind == "ragged" and self.is_text
        return np.dtype(self.dtype).itemsize * (1 if ragged_text else math.prod(self.shape))

    @property
    def row_bytes(self) -> int:
        return self.mean_bytes if self.kind == "ragged" else self.value_bytes
