"""HDF5 files: the datasets at their top level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from hpc_train.data.hdf5.chunked import ChunkIndex
from hpc_train.data.hdf5.data_file import HDF5_ERRORS, DataFile
from hpc_train.data.hdf5.declared import why_not_plausible
from hpc_train.data.hdf5.file_table import Entry, describe, mean_bytes
from hpc_train.data.hdf5.input_file import Consent, InputFile, require_unchanged
from hpc_train.data.hdf5.layout import Chunked, Contiguous, Opaque, give_hdf5_its_plugins, layout_of
from hpc_train.data.sources.arrays import Array, Arrays, InFile, Slices, native
from hpc_train.data.sources.table import Rows
from hpc_train.data.sources.texts import RaggedDataset, Texts
from hpc_train.errors import UserError

MAX_CACHED_CHUNK_BYTES = 64 << 20


def open_hdf5(path: Path, consent: Consent) -> Arrays:
    """An HDF5 file: contiguous datasets are read where they lie, chunks decoded in order, others read through HDF5."""
    give_hdf5_its_plugins()
    try:
        with InputFile(path, consent) as file:
            arrays, refused = {}, {}
            for name in file.names:
                try:
                    entry = describe(file, name)
                    if entry is not None and entry.column is not None and entry.column.kind == "ragged":
                        arrays[name] = _ragged(file, entry, consent)
                    elif (dataset := file.dataset(name)) is not None:
                        array = _array(file, name, dataset, consent)
                        arrays[name] = Texts(array) if array.dtype.kind == "S" and array.shape else array
                except UserError as error:
                    refused[name] = str(error).removeprefix(f"{path}: ")
    except UserError:
        raise
    except HDF5_ERRORS as error:
        if isinstance(error, OSError) and error.filename:
            raise
        raise UserError(f"{path}: cannot be read as HDF5: {error}") from None
    if not arrays and not refused:
        raise UserError(f"{path}: has no dataset at its top level")
    return Arrays(str(path), arrays, refused)


def _ragged(file: InputFile, entry: Entry, consent: Consent) -> Array:
    assert entry.column is not None
    if entry.problem is not None:
        raise entry.problem
    if entry.layout is None or (isinstance(entry.layout, Opaque) and not entry.layout.readable) or not entry.rows:
        reason = entry.layout.reason if isinstance(entry.layout, Opaque) else "it has no rows"
        raise UserError(f"{file.path}: dataset {entry.column.name!r} cannot be read: {reason}")
    column = replace(entry.column, mean_bytes=mean_bytes([entry]))
    return RaggedDataset(file.path, entry.rows, Path(file.path).stat().st_size, column, entry.layout, consent)


def _array(file: InputFile, name: str, dataset: h5py.Dataset, consent: Consent) -> Array:
    if dataset.shape and dataset.dtype.kind in "buifcS":
        layout = layout_of(dataset, name in file.elsewhere)
        if isinstance(layout, Opaque) and not layout.readable:
            raise UserError(f"{file.path}: dataset {name!r} cannot be read: {layout.reason}")
        if why_not := why_not_plausible(dataset, layout, file.bytes_around(name, dataset)):
            raise UserError(f"{file.path}: dataset {name!r} {why_not}")
        if isinstance(layout, Contiguous):
            return InFile(Path(file.path), layout.offset, np.dtype(layout.dtype), dataset.shape)
        if isinstance(layout, Chunked) and 0 not in dataset.shape:
            return _Chunks(file.path, name, layout, dataset.shape)
    return _Dataset(file.path, name, dataset, consent)


class _Dataset(Array):
    """A dataset that HDF5 has to read."""

    def __init__(self, path: str, name: str, dataset: h5py.Dataset, consent: Consent) -> None:
        self._path, self._name, self._consent = path, name, consent
        self.dtype, self.shape = dataset.dtype, dataset.shape or ()
        chunk_bytes = int(np.prod(dataset.chunks or (0,), dtype=np.int64)) * dataset.dtype.itemsize
        self._cache_bytes = max(1 << 20, min(2 * chunk_bytes, MAX_CACHED_CHUNK_BYTES))

    def reader(self, start: int) -> Callable[[int], Rows]:
        file = InputFile(self._path, self._consent, rdcc_nbytes=self._cache_bytes)
        read = Slices(file.dataset(self._name)).reader(start)

        def read_unchanged(count: int) -> Rows:
            rows = read(count)
            require_unchanged(file.outside)
            return rows

        return read_unchanged


class _Chunks(Array):
    """A chunked dataset, decoded without HDF5, which would inflate a chunk to whatever size it has."""

    def __init__(self, path: str, name: str, layout: Chunked, shape: tuple[int, ...]) -> None:
        self._path, self._name, self._layout = path, name, layout
        self.dtype, self.shape = np.dtype(layout.dtype), shape

    def reader(self, start: int) -> Callable[[int], Rows]:
        file = DataFile(self._path, keep_open=False)
        with InputFile(self._path) as opened:
            index = ChunkIndex(opened.dataset(self._name), self._layout)
        chunk = np.empty((self._layout.chunk[0], *self.shape[1:]), self.dtype)
        raw = chunk.reshape(-1).view(np.uint8).reshape(len(chunk), -1)
        position, held = start, -1

        def read(count: int) -> np.ndarray:
            nonlocal position, held
            rows = np.empty((count, *self.shape[1:]), self.dtype)
            done = 0
            while done < count:
                number, first = divmod(position, len(chunk))
                if number != held:
                    index.read(file, number, raw)
                    held = number
                some = chunk[first : first + count - done]
                rows[done : done + len(some)] = some
                done, position = done + len(some), position + len(some)
            return native(rows)

        return read
