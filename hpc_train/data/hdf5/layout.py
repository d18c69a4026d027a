"""How a dataset's rows lie in its file, and so how they can be read."""

from __future__ import annotations

import importlib
import math
from contextlib import suppress
from dataclasses import dataclass

import h5py

from hpc_train.data.hdf5.codecs import Filter, filters_of, why_not

MIN_BAND_BYTES = 64 << 10


@dataclass(frozen=True)
class Contiguous:
    """All rows one after the other from byte `offset` of the file on, as they are; `dtype` with its byte order."""

    dtype: str
    offset: int


@dataclass(frozen=True)
class Chunked:
    """Chunks of shape `chunk` (rows first), each passed through `filters`, which codecs.Decoder can undo."""

    dtype: str
    chunk: tuple[int, ...]
    filters: tuple[Filter, ...]

    def band_rows(self, row_bytes: int) -> int:
        """Rows that are decoded at once: those of a chunk, or of several small ones."""
        rows = self.chunk[0]
        return rows * max(1, -(-MIN_BAND_BYTES // max(1, rows * row_bytes)))


@dataclass(frozen=True)
class Opaque:
    """Only the HDF5 library can read it, one thread at a time; `reason` is why. Not `readable`: not even that."""

    dtype: str
    reason: str
    readable: bool = True


Layout = Contiguous | Chunked | Opaque


def give_hdf5_its_plugins() -> None:
    """Lets the HDF5 library find the filters of the package hdf5plugin, where that is installed."""
    with suppress(ImportError):
        importlib.import_module("hdf5plugin")


def layout_of(dataset: h5py.Dataset, elsewhere: bool = False) -> Layout:
    """The layout of a dataset of numbers with at least one dimension.

    Args:
        elsewhere: It lies in another file than the one that it was looked for in.
    """
    numbers, shape = dataset.dtype, dataset.shape
    dtype = numbers.str
    if elsewhere:
        return Opaque(dtype, "it lies in another file")
    if not dataset.id.get_type().equal(h5py.h5t.py_create(numbers, logical=True)):
        return Opaque(dtype, "its numbers are stored in a form that needs converting")
    properties = dataset.id.get_create_plist()
    kind = properties.get_layout()
    if kind == h5py.h5d.VIRTUAL:
        return Opaque(dtype, "it is a virtual dataset")
    if properties.get_external_count():
        return Opaque(dtype, "its rows lie in other files")
    if 0 in shape:
        return Opaque(dtype, "it is empty")
    if kind == h5py.h5d.CHUNKED:
        filters = filters_of(dataset)
        reason = why_not(filters)
        if reason is None and None in dataset.maxshape[1:]:
            return Opaque(dtype, "it can grow sideways")  # HDF5 1.14 numbers the chunks of such datasets wrongly
        if reason is None and not hasattr(dataset.id, "chunk_iter"):
            return Opaque(dtype, "this build of h5py cannot list chunks")
        if reason is None:
            return Chunked(dtype, dataset.chunks, filters)
        give_hdf5_its_plugins()
        return Opaque(dtype, reason, all(h5py.h5z.filter_avail(stage.id) for stage in filters))
    offset = dataset.id.get_offset()
    if offset is None or dataset.id.get_storage_size() != math.prod(shape) * numbers.itemsize:
        return Opaque(dtype, "its rows lie in the header, or were never written")
    return Contiguous(dtype, int(offset))
