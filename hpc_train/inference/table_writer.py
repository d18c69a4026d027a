"""Tables of predictions as files, in CSV or Parquet."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet
from pyarrow import compute

from hpc_train.errors import UserError


class TableWriter(ABC):
    """Writes tables of Arrow with the same columns, one after the other, to a file that is open."""

    @abstractmethod
    def __init__(self, file: BinaryIO, schema: Any) -> None:
        """`schema` is Arrow's."""

    @abstractmethod
    def write(self, table: Any) -> None:
        """Writes rows."""

    @abstractmethod
    def close(self) -> None:
        """Writes what is left; the file stays open."""


class CSVWriter(TableWriter):
    """UTF-8, with commas; quotes where a field needs them; nothing where a value is missing.

    Numbers have as many digits as tell them from all others of their type.
    """

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self._text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(schema.names)

    def write(self, table: Any) -> None:
        columns = [compute.fill_null(column.cast(pa.large_string()), "").to_pylist() for column in table.columns]
        self._writer.writerows(zip(*columns, strict=True))

    def close(self) -> None:
        self._text.detach()


class ParquetWriter(TableWriter):
    """A row group each time."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self._schema, self._writer = schema, pyarrow.parquet.ParquetWriter(file, schema)

    def write(self, table: Any) -> None:
        if other := next((a.name for a, b in zip(self._schema, table.schema, strict=True) if a.type != b.type), None):
            raise UserError(
                f"--keep {other}: it is {self._schema.field(other).type} in one file and "
                f"{table.schema.field(other).type} in another; write a .csv, or predict the files one by one"
            )
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()


WRITERS: dict[str, type[TableWriter]] = {".csv": CSVWriter, ".parquet": ParquetWriter}
"""By the end of a file's name."""


def writer_for(path: Path) -> type[TableWriter]:
    """What writes a file of that name.

    Raises:
        UserError: Nothing does.
    """
    kind = WRITERS.get(path.suffix.lower())
    if kind is None:
        raise UserError(f"--out {path}: predictions of a table are written as {' or '.join(WRITERS)}; call it so")
    return kind
