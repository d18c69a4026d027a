"""Parquet files, read with pyarrow: numbers, booleans, texts, and lists of numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from hpc_train.data.ragged import TEXT, Ragged
from hpc_train.data.sources.arrow import texts_of_arrow
from hpc_train.data.sources.recipe import Part, Target
from hpc_train.data.sources.table import Block, Field, Rows, piece_rows
from hpc_train.errors import UserError
from hpc_train.files import require_regular

BUFFER_BYTES = 1 << 20


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


class Parquet(Part):
    """A Parquet file.

    Args:
        targets: The types asked for: lists whose size the file does not fix are of one length where a shape is given.

    Raises:
        UserError: Not a Parquet file.
    """

    def __init__(self, path: Path, targets: Mapping[str, Target]) -> None:
        self.name, self._path = str(path), path
        self.fields: dict[str, Field] = {}
        self.refused: dict[str, str] = {}
        with self._open() as file:
            self._rows = int(file.metadata.num_rows)
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            if min(groups, default=0) < 0 or sum(groups) != self._rows:
                raise UserError(
                    f"{path}: its groups of rows have {sum(groups):,} rows, but its header says {self._rows:,}"
                )
            schema, metadata = file.schema_arrow, file.metadata
        self.names = schema.names
        sizes = self._mean_bytes(metadata)
        for column in schema:
            if _is_text(column.type):
                self.fields[column.name] = Field(column.name, TEXT, (), True, sizes.get(column.name, 0))
                continue
            shape: tuple[int, ...] = ()
            kind = column.type
            if pa.types.is_fixed_size_list(kind):
                shape, kind = (kind.list_size,), kind.value_type
            elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
                given = targets[column.name].shape if column.name in targets else None
                if given is None:
                    value = kind.value_type
                    if pa.types.is_integer(value) or pa.types.is_floating(value):
                        dtype = np.dtype(value.to_pandas_dtype())
                        self.fields[column.name] = Field(column.name, dtype, (), True, sizes.get(column.name, 0))
                    else:
                        self.refused[column.name] = f"{kind}: no lists of numbers"
                    continue
                shape, kind = (math.prod(given),), kind.value_type
            if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
                self.fields[column.name] = Field(column.name, np.dtype(kind.to_pandas_dtype()), shape)
            else:
                self.refused[column.name] = f"{column.type}: no numbers"

    def _mean_bytes(self, metadata: Any) -> dict[str, int]:
        """What a row of each column takes on average, decoded, as the file says."""
        sizes: Counter[str] = Counter()
        for group in range(metadata.num_row_groups):
            for k in range(metadata.num_columns):
                found = metadata.row_group(group).column(k)
                sizes[found.path_in_schema.partition(".")[0]] += max(0, found.total_uncompressed_size)
        return {name: -(-size // max(1, self._rows)) for name, size in sizes.items()}

    def _open(self) -> Any:
        try:
            require_regular(self._path, follow=True)
            return pyarrow.parquet.ParquetFile(self._path, buffer_size=BUFFER_BYTES, pre_buffer=False)
        except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
            cause = getattr(error, "strerror", None) or "it is damaged, or something else"
            raise UserError(f"{self.name}: cannot be read as Parquet: {cause}") from None

    def rows_of(self, names: Sequence[str]) -> int | None:
        return self._rows

    def blocks(self, names: Sequence[str], start: int) -> Iterator[Block]:
        piece = piece_rows([self.fields[name] for name in names])
        with self._open() as file:
            first, skip = 0, 0
            while skip < file.num_row_groups and first + file.metadata.row_group(skip).num_rows <= start:
                first += file.metadata.row_group(skip).num_rows
                skip += 1
            groups = range(skip, file.num_row_groups)
            try:
                for batch in file.iter_batches(piece, row_groups=groups, columns=list(names)):
                    block = {name: self._values(batch.column(name), name, first) for name in names}
                    used = max(0, start - first)
                    first += batch.num_rows
                    if used < batch.num_rows:
                        yield {name: array[used:] for name, array in block.items()}
            except (OSError, pa.ArrowException, MemoryError) as error:
                cause = getattr(error, "strerror", None) or "it is damaged"
                raise UserError(f"{self.name}: cannot be read: {cause}") from None

    def _values(self, array: Any, name: str, first: int) -> Rows:
        field = self.fields[name]
        if array.null_count:
            row = first + array.is_null().index(True).as_py() + 1
            raise UserError(f"{self.name}: column {name!r} has no value in row {row}")
        if field.is_text:
            return texts_of_arrow(array.cast(pa.large_string()))
        if field.ragged:
            values = array.flatten()
            if values.null_count:
                raise UserError(f"{self.name}: column {name!r} has a list without some value after row {first + 1}")
            counts = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
            return Ragged(np.asarray(values.to_numpy(zero_copy_only=False)).astype(field.dtype, copy=False), counts)
        if field.shape:
            lengths = set(array.value_lengths().to_pylist())
            if lengths - {field.shape[0]}:
                raise UserError(
                    f"{self.name}: column {name!r} has lists of {min(lengths)} to {max(lengths)} values in rows "
                    f"{first + 1} to {first + len(array)}, not of {field.shape[0]}"
                )
            array = array.flatten()
            if array.null_count:
                row = first + array.is_null().index(True).as_py() // field.shape[0] + 1
                raise UserError(f"{self.name}: column {name!r} has a list without some value in row {row}")
        values = array.to_numpy(zero_copy_only=False)
        return np.asarray(values).astype(field.dtype, copy=False).reshape(-1, *field.shape)
