"""One shard: an HDF5 file of some rows, written under a temporary name so that no half-written one is ever seen."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_train.data.hdf5.data_file import HDF5_ERRORS
from hpc_train.data.hdf5.file_table import describe
from hpc_train.data.hdf5.input_file import InputFile
from hpc_train.data.hdf5.shard_schema import SCHEMA_ATTRIBUTE
from hpc_train.data.ragged import Ragged
from hpc_train.data.sources.spool import writing
from hpc_train.data.sources.table import Cursor, Field
from hpc_train.data.writing.ragged_writer import RaggedWriter
from hpc_train.data.writing.storage import Storage
from hpc_train.errors import UserError
from hpc_train.files import open_to_read, unforeseen
from hpc_train.folders import held, remove, rename

ALIGNMENT_BYTES = 4096


def check_shard(path: Path, fields: Sequence[Field], rows: int) -> None:
    """Raises UserError where the file is not a whole shard of these columns and rows."""
    wanted: dict[str, Any] = {f.name: ((rows, *f.shape), f.dtype) for f in fields if not f.ragged}
    wanted |= {f.name: (rows, f.shape, f.dtype) for f in fields if f.ragged}
    try:
        with InputFile(path) as file:
            found: dict[str, Any] = {name: (dataset.shape, dataset.dtype) for name, dataset in file.datasets()}
            for name in file.names:
                entry = describe(file, name) if name not in found else None
                if entry is not None and entry.column is not None:
                    found[name] = (entry.rows, entry.column.shape, np.dtype(entry.column.dtype))
    except HDF5_ERRORS:  # and what UserError says
        found = {}
    if found != wanted:
        raise UserError(f"{path}: is not the shard that this command writes; remove it, and it is written again")


def write_shard(
    path: Path,
    fields: Sequence[Field],
    cursors: Sequence[Cursor],
    rows: int,
    storage: Storage,
    count: Callable[[int], None],
) -> None:
    """Writes the next `rows` rows of `cursors`, side by side, and calls `count` with the bytes written so far.

    Raises:
        OSError: The file cannot be written; the message is a sentence with path and cause.
    """
    plain = [field for field in fields if not field.ragged]
    options = {field.name: storage.options(field, rows, len(fields)) for field in plain}
    chunks = [math.prod(o["chunks"]) * f.dtype.itemsize for f in plain if "chunks" in (o := options[f.name])]
    # Aligned data is copied two to three times as fast; small objects are left where they are. A chunk that is
    # written in two parts stays in a cache of two chunks meanwhile.
    alignment = ALIGNMENT_BYTES if storage.compression == "none" else 1
    how = {"alignment_threshold": alignment, "alignment_interval": alignment}
    how["rdcc_nbytes"] = max(1 << 20, 2 * max(chunks, default=0))
    nbytes = sum(math.prod(field.shape) * field.dtype.itemsize for field in fields) * rows
    whole, written = nbytes if storage.compression == "none" and len(plain) == len(fields) else None, 0
    with new_file(path, **how) as file, ExitStack() as opened:
        with writing(path):
            columns = {field.name: _schema(field) for field in fields}
            file.attrs[SCHEMA_ATTRIBUTE] = json.dumps({"version": 1, "rows": rows, "columns": columns})
            # Kept open meanwhile: closing one would write the chunk that is not full yet.
            datasets = {
                f.name: file.create_dataset(f.name, (rows, *f.shape), f.dtype, **options[f.name]) for f in plain
            }
            ragged = {
                f.name: opened.enter_context(RaggedWriter(path, file, f, rows, storage, len(fields)))
                for f in fields
                if f.ragged
            }
        for cursor in cursors:
            position = 0
            while position < rows:
                length, block = cursor.take(rows - position)
                with writing(path, whole - written if whole is not None else None):
                    for name, array in block.items():
                        if isinstance(array, Ragged):
                            ragged[name].append(array)
                            continue
                        datasets[name][position : position + length] = np.ascontiguousarray(array)
                position += length
                written += sum(array.nbytes for array in block.values())
                count(written)
        for writer in ragged.values():
            with writing(path):
                writer.finish()


def _schema(field: Field) -> dict[str, Any]:
    """What the attribute SCHEMA_ATTRIBUTE says of a column."""
    dtype = "text" if field.is_text else field.dtype.name
    more: dict[str, Any] = {"ragged": True} if field.ragged else {}
    if field.classes:
        more["classes"] = list(field.classes)
    return {"shape": list(field.shape), "dtype": dtype, **more}


@contextmanager
def new_file(path: Path, **how: Any) -> Iterator[h5py.File]:
    """A new HDF5 file, which has an unforeseen name until it is whole, and then is `path`; where that fails, none is.

    Raises:
        OSError: The file cannot be written; the message is a sentence with path and cause.
    """
    temporary = unforeseen(path)
    try:
        with writing(path), held(temporary.parent, follow=True) as folder:
            file = h5py.File(folder / temporary.name, "x", **how)  # O_CREAT | O_EXCL, which follows no link
        try:
            yield file
            with writing(path):
                file.flush()
        except BaseException:
            _discard(file)
            raise
        with writing(path):
            file.close()
            with open_to_read(temporary) as whole:
                os.fsync(whole.fileno())
            rename(temporary, path)
    finally:
        remove(temporary, missing_ok=True)


def _discard(file: h5py.File) -> None:
    """Closes a file that may not be writable any more, as on a full disk.

    HDF5 crashes where it cannot write what it still holds, so that goes nowhere instead.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, file.id.get_vfd_handle())
    os.close(nowhere)
    with suppress(OSError, RuntimeError):
        file.close()
