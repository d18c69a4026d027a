"""HDF5 files: the datasets at their top level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from hpc_train.data.hdf5.layout import Contiguous, Opaque, give_hdf5_its_plugins, layout_of
from hpc_train.data.hdf5.shards import open_file
from hpc_train.data.sources.arrays import Array, Arrays, InFile, Slices
from hpc_train.errors import UserError

MAX_CACHED_CHUNK_BYTES = 64 << 20


def open_hdf5(path: Path) -> Arrays:
    """An HDF5 file: contiguous datasets are read where they lie in it, others through HDF5, in order."""
    give_hdf5_its_plugins()
    try:
        with open_file(path) as file:
            arrays = {name: _array(path, item) for name, item in file.items() if isinstance(item, h5py.Dataset)}
    except (OSError, KeyError, RuntimeError) as error:
        raise UserError(f"{path}: cannot be read as HDF5: {error}") from None
    if not arrays:
        raise UserError(f"{path}: has no dataset at its top level")
    return Arrays(str(path), arrays)


def _array(path: Path, dataset: h5py.Dataset) -> Array:
    if dataset.shape and dataset.dtype.kind in "buifc":
        layout = layout_of(dataset)
        if isinstance(layout, Contiguous):
            return InFile(path, layout.offset, np.dtype(layout.dtype), dataset.shape)
        if isinstance(layout, Opaque) and not layout.readable:
            raise UserError(f"{path}: dataset {dataset.name!r} cannot be read: {layout.reason}")
    return _Dataset(path, dataset)


class _Dataset(Array):
    """A dataset that HDF5 has to read."""

    def __init__(self, path: Path, dataset: h5py.Dataset) -> None:
        self._path, self._name = path, dataset.name
        self.dtype, self.shape = dataset.dtype, dataset.shape or ()
        chunk_bytes = int(np.prod(dataset.chunks or (0,), dtype=np.int64)) * dataset.dtype.itemsize
        self._cache_bytes = max(1 << 20, min(2 * chunk_bytes, MAX_CACHED_CHUNK_BYTES))

    def reader(self, start: int) -> Callable[[int], np.ndarray]:
        file = h5py.File(self._path, "r", locking="best-effort", rdcc_nbytes=self._cache_bytes)
        return Slices(file[self._name]).reader(start)
