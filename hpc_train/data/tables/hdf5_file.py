"""HDF5 files as tables: each dataset with a number or a text a row is a column."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.data.hdf5.columns import Column
from hpc_train.data.hdf5.reader import Reader, Rows
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.ragged import Ragged
from hpc_train.data.sources.arrow import arrow_of_texts
from hpc_train.data.sources.texts import texts_of
from hpc_train.data.tables.table_file import TableFile, Types
from hpc_train.errors import UserError

BLOCK_ROWS = 1024
BLOCK_BYTES = 8 << 20
TYPES = {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}


@dataclass(frozen=True)
class HDF5File(TableFile):
    """An HDF5 file; its datasets with another shape than `[rows]` are no columns."""

    kind = "hdf5"
    shards: ShardSet

    @classmethod
    def open(cls, path: Path) -> HDF5File:
        """Reads what columns it has.

        Raises:
            UserError: It cannot be read, or has no column of numbers or texts.
        """
        found = find_shards(HDF5Input(shards=(glob.escape(str(path)),), label=()), in_batches=False)
        names = [column.name for column in found.columns if _type_of(column) is not None]
        if not names:
            raise UserError(f"{path}: has no dataset with a number or a text a row; a table has such columns")
        whole = HDF5Input(shards=(glob.escape(str(path)),), features=tuple(names), label=())
        return cls(find_shards(whole, in_batches=False))

    def to_json(self) -> dict[str, Any]:
        return {"shards": self.shards.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HDF5File:
        """The file that `to_json` has given."""
        return cls(ShardSet.from_json(value["shards"]))

    @property
    def path(self) -> Path:  # type: ignore[override]
        return Path(self.shards.paths[0])

    @property
    def types(self) -> Types:  # type: ignore[override]
        return {column.name: _type_of(column) for column in self.shards.columns}

    @cached_property
    def _starts(self) -> np.ndarray:
        return self.shards.blocks_of(BLOCK_ROWS, BLOCK_BYTES).starts

    @property
    def blocks(self) -> int:  # type: ignore[override]
        return len(self._starts) - 1

    def read(self, block: int, wanted: Types) -> Iterator[Any]:
        first, end = int(self._starts[block]), int(self._starts[block + 1])
        try:
            with Reader(self.shards, cached_rows=end - first) as reader:
                rows = reader.read(np.arange(first, end))
        except OSError as error:
            raise UserError(f"{error}; write the file anew, or leave it out") from None
        columns = dict(zip((column.name for column in self.shards.columns), rows, strict=True))
        yield pa.table({name: _arrow(columns[name], self.path, name) for name in wanted})

    def place(self, block: int, row: int) -> str:
        return f"row {int(self._starts[block]) + row + 1:,}"


def _type_of(column: Column) -> str | None:
    """The type that schemas have for a dataset; None where it is no column of a table."""
    if column.shape or column.kind == "length" or column.takes_padding:
        return None
    return "text" if column.is_text else TYPES.get(np.dtype(column.dtype).kind)


def _arrow(rows: Rows, path: Path, name: str) -> Any:
    """Rows as Arrow has them."""
    array = rows if isinstance(rows, Ragged) else np.asarray(rows)
    if array.dtype.kind != "S":
        return pa.array(array)
    texts = array if isinstance(array, Ragged) else texts_of(array)
    try:
        return arrow_of_texts(texts).cast(pa.large_string())
    except pa.ArrowInvalid:
        raise UserError(f"{path}: column {name!r} is not text in UTF-8; write the file anew, or leave it out") from None
