"""Which server, or rank, holds which bytes of the parameters. Pure.

All trainable variables lie one after the other in one flat arena, each aligned to 64 bytes. Cuts at multiples of 64
bytes give every server one range of it, of about the same size: large variables are split. Those whose gradients are
rows (of an embedding) are cut between rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc_train.distributed.tensors import ALIGNMENT, aligned, places


@dataclass(frozen=True)
class VariableSpec:
    """One trainable variable.

    Attributes:
        rows: Its gradient is some rows of it: it is cut between rows. whole: it is not to be cut.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    rows: bool = False
    whole: bool = False

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * self.dtype.itemsize

    @property
    def unit(self) -> int:
        """It may be cut at multiples of so many bytes."""
        if self.whole or not self.nbytes:
            return max(1, self.nbytes)
        row = self.nbytes // self.shape[0] if self.rows and self.shape else self.dtype.itemsize
        return math.lcm(row, ALIGNMENT)


@dataclass(frozen=True)
class Piece:
    """The part of one variable that one server holds.

    Attributes:
        variable: Its number. start, stop: elements, counted through the flat variable.
        shape: The variable's where it is whole; rows of it, or else flat, where it is cut.
        offset: Bytes from the arena's begin.
    """

    variable: int
    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return (self.stop - self.start) * self.dtype.itemsize

    def view(self, arena: np.ndarray, origin: int = 0) -> np.ndarray:
        """This piece within `arena` (uint8), which begins with the byte `origin` of the whole arena."""
        first = self.offset - origin
        return arena[first : first + self.nbytes].view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Partition:
    """The variables in the arena, and where it is cut.

    Attributes:
        offsets: Of each variable, bytes. cuts: server s holds the bytes cuts[s] to cuts[s + 1].
    """

    variables: tuple[VariableSpec, ...]
    offsets: tuple[int, ...]
    cuts: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.cuts[-1]

    def nbytes_of(self, server: int) -> int:
        """Bytes that `server` holds."""
        return self.cuts[server + 1] - self.cuts[server]

    def pieces(self, server: int) -> list[Piece]:
        """What `server` holds, in the arena's order."""
        if server not in self._known:
            low, high = self.cuts[server : server + 2]
            spans = [
                (number, variable, offset, max(low, offset), min(high, offset + variable.nbytes))
                for number, (variable, offset) in enumerate(zip(self.variables, self.offsets, strict=True))
            ]
            self._known[server] = [_piece(*span) for span in spans if span[-2] < span[-1]]
        return self._known[server]

    @cached_property
    def _known(self) -> dict[int, list[Piece]]:
        return {}

    @property
    def cut_variables(self) -> list[int]:
        """Numbers of the variables that lie on more than one server."""
        return [
            number
            for number, (variable, offset) in enumerate(zip(self.variables, self.offsets, strict=True))
            if any(offset < cut < offset + variable.nbytes for cut in self.cuts)
        ]


def _piece(number: int, variable: VariableSpec, offset: int, first: int, end: int) -> Piece:
    start, stop = ((place - offset) // variable.dtype.itemsize for place in (first, end))
    shape = variable.shape
    if stop - start < variable.size:
        inner = variable.shape[1:] if variable.rows else ()
        shape = ((stop - start) // math.prod(inner), *inner)
    return Piece(number, start, stop, shape, variable.dtype, first)


def partition(variables: Sequence[VariableSpec], servers: int) -> Partition:
    """Lays `variables` out and cuts them into a part for each of `servers`, as equal as units of variables allow.

    A part may be empty, where there are too few units.
    """
    offsets, end = places([variable.nbytes for variable in variables])
    cuts = [0]
    for server in range(1, servers):
        cuts.append(max(cuts[-1], _nearest_cut(variables, offsets, end * server // servers, end)))
    return Partition(tuple(variables), tuple(offsets), (*cuts, end))


def even_partition(variables: Sequence[VariableSpec], ranks: int) -> Partition:
    """Lays `variables` out and cuts them at multiples of 64 bytes into parts of as many bytes; the last are padded."""
    offsets, end = places([variable.nbytes for variable in variables])
    part = aligned(-(-end // ranks))
    return Partition(tuple(variables), tuple(offsets), tuple(part * rank for rank in range(ranks + 1)))


def _nearest_cut(variables: Sequence[VariableSpec], offsets: Sequence[int], wanted: int, end: int) -> int:
    number = int(np.searchsorted(offsets, wanted, side="right")) - 1
    if number < 0:
        return 0
    begin, unit = offsets[number], variables[number].unit
    last = offsets[number + 1] if number + 1 < len(offsets) else end
    below = begin + (wanted - begin) // unit * unit
    end_of_variable = begin + variables[number].nbytes
    if below >= end_of_variable:  # in the padding behind it
        return last
    above = below + unit if below + unit < end_of_variable else last
    return below if wanted - below <= above - wanted else above
