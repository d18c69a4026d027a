"""One source, several sets: by columns whose names say which set they are of, or by a fraction of the rows.

- `--split`: x_train and y_train are x and y of the set train, x_test and y_test those of test; train_x is x_train.
- `--split 0.1`: a tenth of all rows is test, the others are train. Which rows that is, the seed decides alone: the
  first tenth of the order in which `--shuffle` with that seed writes all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from hpc_train.arguments import shown
from hpc_train.data.sampling.shuffle import PIECE, Shuffle
from hpc_train.data.sources.recipe import Part, Recipe
from hpc_train.data.sources.table import Block, Table, numbered
from hpc_train.errors import UserError
from hpc_train.telemetry.units import counted
from hpc_train.text import listed

TRAIN, TEST = "train", "test"
SETS = {
    **dict.fromkeys(("train", "training"), TRAIN),
    "test": TEST,
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    "eval": "eval",
    "dev": "dev",
}
"""The words in columns' names, and the set that each stands for, which its files are called by."""
_WORD = "|".join(sorted(SETS, key=len, reverse=True))
_LAST = re.compile(rf"(.+)[_\-. ]({_WORD})", re.IGNORECASE | re.DOTALL)
_FIRST = re.compile(rf"({_WORD})[_\-. ](.+)", re.IGNORECASE | re.DOTALL)
_FORM = "give --split alone, for columns such as x_train and x_test, or --split 0.1 for a tenth of the rows"

BY_NAMES = "by names"
Split = str | float | None
"""BY_NAMES, the fraction of the rows for evaluation, or None."""


def parse_split(text: str | float | None) -> Split:
    """What is given to `--split`.

    Raises:
        UserError: It is no fraction between 0 and 1.
    """
    if text is None or text == BY_NAMES:
        return text
    try:
        fraction = float(text)
    except ValueError:
        raise UserError(f"--split {shown(text)}: {_FORM}") from None
    if not 0 < fraction < 1:
        raise UserError(f"--split {text}: a fraction is more than 0 and less than 1; {_FORM}")
    return fraction


@dataclass(frozen=True)
class OfSet:
    """What a column's name says: which set it is of, and what it is called in each."""

    set: str
    name: str


def set_of(column: str) -> OfSet | None:
    """Which set a column such as x_train or test_images is of; None where its name does not say."""
    if found := _LAST.fullmatch(column):
        return OfSet(SETS[found[2].lower()], found[1])
    if found := _FIRST.fullmatch(column):
        return OfSet(SETS[found[1].lower()], found[2])
    return None


def common_names(recipe: Recipe) -> Recipe:
    """The same options where they name x_train or x_test, for what both are called in their sets: x.

    Raises:
        UserError: A column is named by two of its names.
    """

    def common(name: str) -> str:
        found = set_of(name)
        return found.name if found else name

    targets = {common(name): target for name, target in recipe.targets.items()}
    columns: dict[str, str] | None = None
    if recipe.columns is not None:
        columns = {common(old): common(new) if new == old else new for old, new in recipe.columns.items()}
        if len(columns) < len(recipe.columns):
            raise UserError(
                f"--columns {','.join(recipe.columns)}: with --split a column is named once for all sets, as in x for "
                "x_train and x_test"
            )
    return replace(recipe, columns=columns, targets=targets)


class _PartOfSet(Part):
    """A file's columns that are of one set.

    Args:
        names: The column's own name by the one that it has in the set.
    """

    def __init__(self, part: Part, names: Mapping[str, str]) -> None:
        self._part, self._own = part, names
        self.name, self.names = part.name, list(names)
        self.fields = {n: replace(part.fields[own], name=n) for n, own in names.items() if own in part.fields}
        self.refused = {n: f"{own}: {part.refused[own]}" for n, own in names.items() if own in part.refused}
        self.texts = [n for n, own in names.items() if own in part.texts]

    def rows_of(self, names: Sequence[str]) -> int | None:
        return self._part.rows_of([self._own[name] for name in names])

    def random_of(self, names: Sequence[str]) -> bool:
        return self._part.random_of([self._own[name] for name in names])

    def blocks(self, names: Sequence[str], start: int) -> Iterator[Block]:
        for block in self._part.blocks([self._own[name] for name in names], start):
            yield {name: block[self._own[name]] for name in names}

    def share(self) -> float | None:
        return self._part.share()

    def gather(self, names: Sequence[str], rows: np.ndarray) -> Block:
        block = self._part.gather([self._own[name] for name in names], rows)
        return {name: block[self._own[name]] for name in names}


def parts_by_set(parts: Sequence[Part], recipe: Recipe) -> dict[str, list[Part]]:
    """The columns of `parts` by set, train first.

    Args:
        recipe: By the names that the columns have in their sets (see common_names).

    Raises:
        UserError: Columns of one set alone, of no set, or that not all sets have.
    """
    found: dict[str, list[Part]] = {}
    rest: dict[str, str] = {}
    for part in parts:
        names: dict[str, dict[str, str]] = {}
        for column in part.names:
            of = set_of(column)
            if of is None:
                rest[column] = part.name
                continue
            own = names.setdefault(of.set, {})
            if of.name in own:
                raise UserError(
                    f"--split: {part.name}: {shown(own[of.name])} and {shown(column)} are both {shown(of.name)} of "
                    f"{of.set}; rename one of them"
                )
            own[of.name] = column
        for name, own in names.items():
            found.setdefault(name, []).append(_PartOfSet(part, own))
    if len(found) < 2:
        there = f"all of them are of {next(iter(found))}" if found else "none says so"
        columns = listed(dict.fromkeys(name for part in parts for name in part.names))
        raise UserError(
            f"--split: the names of the columns do not tell two sets apart ({there}): {columns}. Names such as x_train "
            f"and x_test do; or --split 0.1 takes a tenth of the rows for {TEST}. "
            "Files that are each a set are written by a command each"
        )
    if rest and recipe.columns is None:
        column, name = next(iter(rest.items()))
        columns = ",".join(dict.fromkeys(n for part in found[min(found, key=_place)] for n in part.names))
        raise UserError(
            f"--split: {name}: the column {shown(column)} is of no set, as x_train and x_test are; --columns {columns} "
            "leaves it out"
        )
    _check_same_columns(found, recipe)
    return dict(sorted(found.items(), key=lambda item: _place(item[0])))


def _place(name: str) -> int:
    return list(SETS.values()).index(name)


def _check_same_columns(found: Mapping[str, Sequence[Part]], recipe: Recipe) -> None:
    have = {name: list(dict.fromkeys(n for part in parts for n in part.names)) for name, parts in found.items()}
    every = dict.fromkeys(n for names in have.values() for n in names)
    wanted = [n for n in every if recipe.columns is None or recipe.written(n) is not None]
    for (a, ours), (b, theirs) in combinations(have.items(), 2):
        missing = [n for n in wanted if (n in ours) != (n in theirs)]
        if missing:
            both = [n for n in every if all(n in names for names in have.values())]
            way = f"; --columns {','.join(both)} leaves it out" if both else ""
            here, there = (a, b) if missing[0] in ours else (b, a)
            raise UserError(f"--split: {here} has a column {shown(missing[0])}, but {there} has none{way}")


def check_alike(sets: Mapping[str, Sequence[Table]]) -> None:
    """Raises UserError where a column is not of one type and row shape in all sets."""
    first, *others = ({f.name: (name, f) for t in tables for f in t.fields.values()} for name, tables in sets.items())
    for other in others:
        for column, (there, field) in other.items():
            here, wanted = first[column]
            if field != wanted:
                way = f"; --dtype {column}={wanted.dtype} makes them alike" if field.shape == wanted.shape else ""
                raise UserError(f"--split: column {shown(column)} is {wanted} in {here}, but {field} in {there}{way}")


def rows_of_fraction(rows: int, fraction: float) -> int:
    """How many of `rows` rows are for evaluation: rounded, at least 1, and not all.

    Raises:
        UserError: There is one row only.
    """
    if rows < 2:
        raise UserError(
            f"--split {fraction}: {counted(rows, 'row')} cannot be for both training and evaluation; give 2 or more"
        )
    return min(rows - 1, max(1, round(rows * fraction)))


def files_by_set(rows: Sequence[int], shards: int) -> list[int]:
    """How many files sets of so many rows have: `shards` the largest, the others so many that files are as large."""
    return [max(1, round(shards * count / max(1, *rows))) for count in rows]


class RowsOfSet(Table):
    """The rows of a table whose places in `order` are `first` to `end - 1`, in the table's own order.

    Their number is known, so it begins at any of them without reading those before.
    """

    def __init__(self, table: Table, order: Shuffle, first: int, end: int) -> None:
        assert table.rows is not None
        self._table, self._order, self._first, self._end = table, order, first, end
        self._all = table.rows
        self.name, self.fields, self.rows = table.name, table.fields, end - first

    def blocks(self, start: int = 0) -> Iterator[Block]:
        begin = self._begin(start)
        for rows, block in numbered(self._table.blocks(begin), begin):
            mine = self._mine(rows)
            if mine.any():
                yield {name: array[mine] for name, array in block.items()}

    def _begin(self, start: int) -> int:
        """The table's row that is row `start` of this one."""
        for first in range(0, self._all, PIECE):
            mine = np.flatnonzero(self._mine(range(first, min(first + PIECE, self._all))))
            if start < len(mine):
                return first + int(mine[start])
            start -= len(mine)
        return self._all

    def _mine(self, rows: range) -> np.ndarray:
        """Which of `rows` are in it, bool `[n]`."""
        mine = np.empty(len(rows), bool)
        for first in range(0, len(rows), PIECE):
            places = self._order.places(np.arange(rows[first], rows[min(first + PIECE, len(rows)) - 1] + 1))
            mine[first : first + PIECE] = (self._first <= places) & (places < self._end)
        return mine


def hint(names: Sequence[str]) -> str:
    """What is said where columns of several sets are taken for those of one."""
    sets = {found.set for name in names if (found := set_of(name)) is not None}
    return "; --split writes " + " and ".join(sorted(sets, key=_place)) + " apart" if len(sets) > 1 else ""
