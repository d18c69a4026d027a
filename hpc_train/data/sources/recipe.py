"""Which columns are made of a file's columns, as the options --columns, --stack and --dtype define it.

- `--columns a,b`: only these columns, after stacking; `--columns image=a,b`: a is written as image.
- `--stack image=pixel1..pixel784`: one column `[rows, 784]` of all from pixel1 to pixel784, in the file's order;
  `--stack xy=x,y`: one column `[rows, 2]` of those named.
- `--dtype image=uint8`: the column in another type, where each value is checked to fit;
  `--dtype image=uint8[28,28]`: and its row in another shape; `--dtype kind=text`: as text, where a CSV file has it;
  `--dtype float32`: all columns of floats (or, with an integer type, of integers) in that type.

So --stack names columns as the sources do, --columns has both names, and --dtype those of the shards.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from hpc_train.arguments import shown
from hpc_train.data.memory import available_bytes, fits
from hpc_train.data.ragged import TEXT, Ragged, first_invalid
from hpc_train.data.sources.conversion import convert, convert_array
from hpc_train.data.sources.table import Block, Field, Numbers, Rows, Table, numbered
from hpc_train.errors import UserError

TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)


SHOWN = 200
"""Characters of an option that a message repeats."""
MAX_NAME_BYTES = 60_000
"""HDF5 takes 64 KiB, its own marks included."""


@dataclass(frozen=True)
class Target:
    """What a column is to be: a type and, where it is not to stay, the shape of a row."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.dtype == TEXT:
            return "text"
        return f"{self.dtype}{'' if self.shape is None else list(self.shape)}"


@dataclass(frozen=True)
class Recipe:
    """The three options, parsed.

    Attributes:
        columns: The columns to keep: the name that each is written with, by its own; None for all, as they are.
        stacks: Column to stack: a list of columns, or the two ends of a range.
        targets: Type and row shape by the name that a column is written with.
        kinds: The type for all columns of floats ("f") and of integers ("i").
    """

    columns: Mapping[str, str] | None = None
    stacks: Mapping[str, tuple[str, ...] | Range] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    kinds: Mapping[str, np.dtype[Any]] = field(default_factory=dict)

    def written(self, name: str) -> str | None:
        """What a column of a source is called in the shards; None where it is left out."""
        return name if self.columns is None else self.columns.get(name)

    def renamed(self, name: str) -> bool:
        """Whether a column of a source is written under another name."""
        return self.written(name) not in (None, name)

    def types_in_sources(self) -> dict[str, Target]:
        """Type and row shape by the columns' own names."""
        own = {name: target for name, target in self.targets.items() if not self.renamed(name)}
        given = {old: self.targets[new] for old, new in (self.columns or {}).items() if new in self.targets}
        return {**own, **given}


@dataclass(frozen=True)
class Range:
    """All columns of a file from `first` to `last`."""

    first: str
    last: str


class Part(ABC):
    """What one file holds.

    Attributes:
        name: What messages call it.
        names: All its columns, in the file's order.
        fields: Those that can be written.
        refused: Why the others cannot.
        texts: Those of them that hold text.
    """

    name: str
    names: Sequence[str]
    fields: Mapping[str, Field]
    refused: Mapping[str, str]
    texts: Collection[str] = ()

    def rows_of(self, names: Sequence[str]) -> int | None:
        """How many rows these columns have; None where only reading can show it."""
        return None

    def random_of(self, names: Sequence[str]) -> bool:
        """Whether these columns can be gathered."""
        return False

    @abstractmethod
    def blocks(self, names: Sequence[str], start: int) -> Iterator[Block]:
        """These columns in order from row `start` on."""

    def share(self) -> float | None:
        """How much of the file `blocks` has read so far, 0 to 1; None where the rows show it, or nothing does."""
        return None

    def gather(self, names: Sequence[str], rows: np.ndarray) -> Block:
        """These columns' rows numbered `rows`, in that order."""
        raise NotImplementedError


def parse_recipe(columns: str | None, stacks: Sequence[str], dtypes: Sequence[str]) -> Recipe:
    """Parses the options as they are given on the command line.

    Raises:
        UserError: One that is not in the form that the module's first lines show.
    """
    targets: dict[str, Target] = {}
    kinds: dict[str, np.dtype[Any]] = {}
    for text in dtypes:
        name, named, given = text.rpartition("=")
        target = _target(text, given)
        kind = "f" if target.dtype.kind == "f" else "i"
        if named and name and name not in targets:
            targets[name] = target
        elif not named and target.shape is None and target.dtype.kind not in "bS" and kind not in kinds:
            kinds[kind] = target.dtype
        else:
            raise UserError(
                f"--dtype {text}: give NAME=TYPE or NAME=TYPE[SHAPE], once a column, or a TYPE of numbers, once a kind"
            )
    return Recipe(None if columns is None else _renamed(columns), _stacks(stacks), targets, kinds)


def _renamed(columns: str) -> dict[str, str]:
    """What `--columns` gives: the new name by the old one."""
    option = f"--columns {columns if len(columns) <= SHOWN else columns[:SHOWN] + '…'}"
    pairs = [(new, old if named else new) for new, named, old in (text.partition("=") for text in columns.split(","))]
    if any(not new or not old for new, old in pairs):
        raise UserError(f"{option}: give NAME or NEW=OLD each, with commas between")
    for names in ([new for new, _ in pairs], [old for _, old in pairs]):
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise UserError(f"{option}: give each name once, with commas between; {shown(twice[0])} is there twice")
    for new, old in pairs:
        if new != old:
            check_name(new)
    return {old: new for new, old in pairs}


def check_name(name: str) -> None:
    """Raises UserError where `name` cannot be a dataset's."""
    if name in ("", ".") or "/" in name or "\0" in name:
        raise UserError(
            f"column {shown(name)}: a dataset name is not empty and has no '/'; --columns NEW=OLD gives the column "
            "another name, and leaves out those that it does not list"
        )
    if len(name.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
        raise UserError(
            f"column {shown(name)}: a dataset name has {MAX_NAME_BYTES:,} bytes at most; --columns NEW=OLD gives the "
            "column another name"
        )


def _target(option: str, text: str) -> Target:
    match = re.fullmatch(r"(\w+)(?:\[(\d+(?:,\d+)*)?\])?", text.replace(" ", ""))
    if text == "text":
        return Target(TEXT)
    if match is None or match[1] not in TYPES:
        near = get_close_matches(match[1] if match else text, TYPES, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(
            f"--dtype {option}: {text!r} is not TYPE or TYPE[SHAPE], as in uint8[28,28]; "
            f"types are {', '.join(TYPES)}, text{hint}"
        )
    shape = tuple(map(int, (match[2] or "").split(","))) if match[2] else () if "[" in text else None
    if shape and 0 in shape:
        raise UserError(f"--dtype {option}: a row's shape has no 0")
    return Target(np.dtype(match[1]), shape)


def _stacks(options: Sequence[str]) -> dict[str, tuple[str, ...] | Range]:
    stacks: dict[str, tuple[str, ...] | Range] = {}
    for text in options:
        name, _, inputs = text.partition("=")
        if not name or not inputs or name in stacks:
            raise UserError(f"--stack {text}: give NAME=FIRST..LAST or NAME=A,B,C, once a column")
        first, dots, last = inputs.partition("..")
        stacks[name] = Range(first, last) if dots else _names(f"--stack {text}", inputs)
    return stacks


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if "" in names or len(set(names)) < len(names):
        raise UserError(f"{option}: give each name once, with commas between")
    return names


@dataclass(frozen=True)
class Output:
    """A column to write: its inputs, stacked where there are several names or a stack of one."""

    name: str
    inputs: tuple[str, ...]
    stacked: bool = False
    target: Target | None = None


class PreparedTable(Table):
    """One file's table after stacking, choosing and converting columns."""

    def __init__(self, part: Part, outputs: Sequence[Output]) -> None:
        self._part, self._outputs = part, outputs
        self._inputs = tuple(dict.fromkeys(name for output in outputs for name in output.inputs))
        self.name = part.name
        self.fields = {o.name: self._field(o) for o in outputs}
        self.rows = part.rows_of(self._inputs)
        self.random = part.random_of(self._inputs)

    def _field(self, output: Output) -> Field:
        fields = [self._part.fields[name] for name in output.inputs]
        shape, dtype = fields[0].shape, fields[0].dtype
        if output.stacked:
            if any(f.shape or f.ragged for f in fields):
                raise UserError(f"{self.name}: column {output.name!r} can stack only columns of single numbers")
            shape, dtype = (len(fields),), np.result_type(*(f.dtype for f in fields))
        ragged = fields[0]
        if ragged.ragged:
            if output.target is not None and (output.target.dtype == TEXT) != ragged.is_text:
                raise UserError(
                    f"{self.name}: column {output.name!r} is {ragged}, which --dtype {output.name}={output.target} "
                    "cannot make of it"
                )
            if output.target is not None and output.target.shape is not None and not ragged.is_text:
                raise UserError(
                    f"{self.name}: column {output.name!r} has rows of different lengths, not of {output.target.shape}; "
                    f"give --dtype {output.name}={output.target.dtype}"
                )
            return replace(ragged, name=output.name, dtype=output.target.dtype if output.target else dtype)
        if output.target is not None:
            wanted = output.target.shape
            if output.target.dtype == TEXT:
                raise UserError(f"{self.name}: column {output.name!r} is {fields[0]}, which is written as numbers")
            if dtype.kind == "c" and dtype != output.target.dtype:
                raise UserError(f"{self.name}: column {output.name!r} is {dtype}: it stays complex, without --dtype")
            if wanted is not None and math.prod(wanted) != math.prod(shape):
                raise UserError(
                    f"{self.name}: column {output.name!r} has {math.prod(shape)} values a row, "
                    f"but --dtype {output.name}={output.target} has {math.prod(wanted)}"
                )
            shape, dtype = shape if wanted is None else wanted, output.target.dtype
        largest = max((Field(output.name, dtype, shape), *fields), key=lambda field: field.row_bytes)
        if not fits(largest.row_bytes):
            raise UserError(
                f"{self.name}: column {output.name!r} has rows of {largest.row_bytes:,} bytes, too large for "
                f"{available_bytes():,} bytes of free memory"
            )
        classes = () if output.stacked or output.target is not None else fields[0].classes
        return Field(output.name, dtype, shape, classes=classes)

    def _checked(self, found: Ragged, output: Output, rows: Numbers) -> Rows:
        """Rows of different lengths, in the type asked for, or texts that are UTF-8."""
        if not self.fields[output.name].is_text:
            return convert(found, self.fields[output.name].dtype, self.name, output.name, rows)
        wrong = first_invalid(found.values, found.lengths)
        if wrong is not None:
            row = rows[wrong // max(1, math.prod(found.lengths.shape[1:]))] + 1
            raise UserError(
                f"{self.name}: column {output.name!r} has in row {row} what is not text in UTF-8; convert the source "
                "to UTF-8, or leave the column out with --columns"
            )
        return found

    def blocks(self, start: int = 0) -> Iterator[Block]:
        for rows, block in numbered(self._part.blocks(self._inputs, start), start):
            yield self._make(block, rows)

    def share(self) -> float | None:
        return self._part.share()

    def gather(self, rows: np.ndarray) -> Block:
        return self._make(self._part.gather(self._inputs, rows), rows)

    def _make(self, block: Block, rows: Numbers) -> Block:
        made: Block = {}
        for output in self._outputs:
            array = block[output.inputs[0]]
            if isinstance(array, Ragged):
                made[output.name] = self._checked(array, output, rows)
                continue
            if output.stacked:
                array = np.stack([np.asarray(block[name]) for name in output.inputs], axis=1)
            if output.target is not None:
                array = convert_array(array, output.target.dtype, self.name, output.name, rows)
                array = array.reshape(len(array), *self.fields[output.name].shape)
            made[output.name] = array
        return made
