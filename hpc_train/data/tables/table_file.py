"""TableFile: one file of a table, whose blocks of rows can be read in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from hpc_train.errors import UserError
from hpc_train.text import listed

Types = Mapping[str, str | None]
"""The type of each column, as schemas call it, in the file's order; None where only all of its rows can tell."""


class TableFile(ABC):
    """A file that has been opened and checked once; made again from JSON on another rank.

    Attributes:
        kind: What names it in JSON.
        path: Of the file.
        types: Its columns.
        blocks: How many blocks of rows it has.
        refused: Columns that no table has, and what they are.
    """

    kind: ClassVar[str]
    path: Path
    types: Types
    blocks: int
    refused: Mapping[str, str] = MappingProxyType({})

    def check_readable(self, names: Sequence[str]) -> None:
        """UserError where one of these columns is none that a table has."""
        if wrong := next((name for name in names if name in self.refused), None):
            raise UserError(
                f"{self.path}: column {wrong!r} is {self.refused[wrong]}; a table has numbers, truth values, texts and "
                "dates: write it as one of these, or leave the column out"
            )

    @abstractmethod
    def read(self, block: int, wanted: Types) -> Iterator[Any]:
        """The rows of a block, in tables of Arrow that follow each other, with these columns.

        Args:
            wanted: The columns, with the type that each is to have; None: as it comes, texts of CSV as texts. Values
                may still be others than of this type.

        Raises:
            UserError: The file cannot be read, or has changed.
        """

    @abstractmethod
    def place(self, block: int, row: int) -> str:
        """Where row `row` of a block is, as "line 17"."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What `from_json` needs."""


def check_names(path: Path, names: Sequence[str], way: str) -> None:
    """UserError where columns have no name, or two have one.

    Args:
        way: What to do about it.
    """
    for number, name in enumerate(names, 1):
        if not name.strip():
            raise UserError(f"{path}: column {number} has no name; {way}")
        if name in names[: number - 1]:
            raise UserError(f"{path}: columns {names.index(name) + 1} and {number} are both called {name!r}; {way}")


def check_alike(files: Sequence[TableFile]) -> None:
    """UserError where files do not have the same columns."""
    first = files[0]
    for file in files[1:]:
        lacking, more = [n for n in first.types if n not in file.types], [n for n in file.types if n not in first.types]
        if lacking or more:
            what = f"has no column {listed(lacking)}" if lacking else f"has a column {listed(more)}, too"
            raise UserError(f"{file.path}: {what}, unlike {first.path}; give files with the same columns")
