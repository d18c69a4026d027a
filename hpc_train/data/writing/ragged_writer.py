"""RaggedWriter: rows of different lengths, written to a shard as their values, laid end to end, and where each ends."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from hpc_train.data.hdf5.columns import ENDS, VALUES
from hpc_train.data.ragged import Ragged
from hpc_train.data.sources.table import PIECE_BYTES, Field
from hpc_train.data.writing.storage import Storage


class RaggedWriter:
    """Writes column `field` of a shard of so many rows. A context manager: leaving it removes what is temporary.

    A contiguous dataset has to be made in its size, which is known with the last row: till then the values are in a
    nameless file beside the shard. Chunked ones grow.
    """

    def __init__(self, path: Path, file: h5py.File, field: Field, rows: int, storage: Storage, columns: int) -> None:
        self._file, self._field, self._rows, self._count = file, field, 0, 0
        outer = field.shape if field.is_text else ()
        self._inner: tuple[int, ...] = () if field.is_text else field.shape
        ends = Field(field.name, np.dtype(np.int64), outer)
        self._ends = file.create_dataset(
            field.name + ENDS, (rows, *outer), ends.dtype, **storage.options(ends, rows, columns)
        )
        options = storage.options(Field(field.name, field.dtype, self._inner), 1 << 62, columns)
        self._grown: Any = None
        self._kept: IO[bytes] | None = None
        if options:
            growing = {"maxshape": (None, *self._inner), **options}
            self._grown = file.create_dataset(field.name + VALUES, (0, *self._inner), field.dtype, **growing)
        else:
            self._kept = tempfile.TemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")  # noqa: SIM115

    def __enter__(self) -> RaggedWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._kept is not None:
            self._kept.close()

    def append(self, rows: Ragged) -> None:
        """Writes the next rows."""
        ends = self._count + np.cumsum(rows.lengths.reshape(-1)).reshape(rows.lengths.shape)
        self._ends[self._rows : self._rows + len(rows)] = ends
        values = np.ascontiguousarray(rows.values)
        if self._kept is not None:
            self._kept.write(values.reshape(-1).view(np.uint8).data)
        elif len(values):
            self._grown.resize(self._count + len(values), axis=0)
            self._grown[self._count :] = values
        self._rows, self._count = self._rows + len(rows), self._count + len(values)

    def finish(self) -> None:
        """Writes what was kept until all rows were there."""
        if self._kept is None:
            return
        name, dtype = self._field.name + VALUES, self._field.dtype
        values = self._file.create_dataset(name, (self._count, *self._inner), dtype)
        self._kept.seek(0)
        row_bytes = max(1, dtype.itemsize * int(np.prod(self._inner)))
        piece = max(1, PIECE_BYTES // row_bytes)
        for first in range(0, self._count, piece):
            some = np.frombuffer(self._kept.read(min(piece, self._count - first) * row_bytes), dtype)
            values[first : first + piece] = some.reshape(-1, *self._inner)
