"""Tables of predictions as files, in CSV or Parquet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet
from pyarrow import compute

from hpc_train.errors import UserError

GROUP_ROWS, GROUP_TABLES = 1 << 16, 16
"""A row group of Parquet is written once one of these is reached: a table has the rows of 4 MiB of CSV, as a rule."""


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
        self._file = file
        self._write_lines([pa.array([name], pa.large_string()) for name in schema.names])

    def write(self, table: Any) -> None:
        self._write_lines([column.cast(pa.large_string()) for column in table.columns])

    def close(self) -> None:
        """All is written."""

    def _write_lines(self, columns: Sequence[Any]) -> None:
        # A line that is empty would be no row.
        odd = '[",\r\n]' if len(columns) > 1 else '[",\r\n]|^$'
        fields = [_quoted(compute.fill_null(column, ""), odd) for column in columns]
        lines = compute.binary_join_element_wise(*fields, _text(","))
        self._file.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())


def _quoted(texts: Any, odd: str) -> Any:
    """`texts`, those that match `odd` in quotes."""
    quoted = compute.binary_join_element_wise(
        _text('"'), compute.replace_substring(texts, '"', '""'), _text('"'), _text("")
    )
    return compute.if_else(compute.match_substring_regex(texts, odd), quoted, texts)


def _text(text: str) -> Any:
    return pa.scalar(text, pa.large_string())


class ParquetWriter(TableWriter):
    """Tables are gathered to row groups, the same ones however many ranks have predicted them."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self._schema, self._writer = schema, pyarrow.parquet.ParquetWriter(file, schema)
        self._gathered: list[Any] = []

    def write(self, table: Any) -> None:
        if other := next((a.name for a, b in zip(self._schema, table.schema, strict=True) if a.type != b.type), None):
            raise UserError(
                f"--keep {other}: it is {self._schema.field(other).type} in one file and "
                f"{table.schema.field(other).type} in another; write a .csv, or predict the files one by one"
            )
        self._gathered.append(table)
        rows = sum(each.num_rows for each in self._gathered)
        if rows >= GROUP_ROWS or len(self._gathered) == GROUP_TABLES:
            self._write_group()

    def close(self) -> None:
        if self._gathered:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        self._writer.write_table(pa.concat_tables(self._gathered).combine_chunks())
        self._gathered = []


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
