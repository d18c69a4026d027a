"""Parquet files as tables: a row group is a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from hpc_train.data.sources.parquet import BUFFER_BYTES
from hpc_train.data.tables.table_file import TableFile, Types, check_names
from hpc_train.data.tables.values import column_type
from hpc_train.errors import UserError
from hpc_train.files import require_regular

BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class ParquetFile(TableFile):
    """A Parquet file.

    Attributes:
        starts: The number of the first row of each block, and of all rows.
    """

    kind = "parquet"
    path: Path
    types: dict[str, str | None]
    starts: tuple[int, ...]
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> ParquetFile:
        """Reads what columns it has.

        Raises:
            UserError: It cannot be read.
        """
        with _opened(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            if any(count < 0 for count in rows) or sum(rows) != metadata.num_rows:
                raise UserError(f"{path}: cannot be read as Parquet: it is damaged, or something else")
        check_names(path, schema.names, "rename it where the file is written")
        found = {field.name: column_type(field.type) for field in schema}
        types: dict[str, str | None] = {name: kind for name, kind in found.items() if kind is not None}
        refused = {field.name: str(field.type) for field in schema if field.name not in types}
        starts = [0]
        for count in rows:
            starts.append(starts[-1] + count)
        return cls(path, types, tuple(starts), refused)

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "types": self.types, "starts": list(self.starts), "refused": self.refused}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ParquetFile:
        """The file that `to_json` has given."""
        return cls(Path(value["path"]), value["types"], tuple(value["starts"]), value["refused"])

    @property
    def blocks(self) -> int:  # type: ignore[override]
        return len(self.starts) - 1

    def read(self, block: int, wanted: Types) -> Iterator[Any]:
        with _opened(self.path) as file:
            rows = 0
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[block], columns=list(wanted), use_threads=False):
                rows += batch.num_rows
                yield pa.Table.from_batches([batch]).select(list(wanted))
            if rows != self.starts[block + 1] - self.starts[block]:
                raise UserError(f"{self.path}: has changed while it was read; try again once it is written")

    def place(self, block: int, row: int) -> str:
        return f"row {self.starts[block] + row + 1:,}"


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, opened; what is wrong with it is a UserError."""
    try:
        require_regular(path, follow=True)
        with pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            yield file
    except UserError:
        raise
    except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
        cause = getattr(error, "strerror", None) or "it is damaged, or something else"
        raise UserError(f"{path}: cannot be read as Parquet: {cause}") from None
