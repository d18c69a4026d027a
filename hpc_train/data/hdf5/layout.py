"""How a dataset's rows lie in its file, and so how they can be read."""

from __future__ import annotations

import importlib
import math
from contextlib import suppress
from dataclasses import dataclass

import h5py
import numpy as np

from hpc_train.data.hdf5.codecs import Filter, filters_of, why_not
from hpc_train.data.ragged import TEXT

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


@dataclass(frozen=True)
class ByEnds:
    """Rows of different lengths, `count` values in all, in a group as this package writes it.

    Attributes:
        values: Of `NAME/values`: all rows' values, row by row; `ends` of `NAME/ends`: where each row's end.
    """

    ends: Contiguous | Chunked | Opaque
    values: Contiguous | Chunked | Opaque
    count: int


@dataclass(frozen=True)
class InHeaps:
    """Rows of different lengths in the file's global heaps, as HDF5's own types of variable length have them.

    Attributes:
        references: Of the dataset: 16 bytes a row, which say where the row is.
        dtype: Of a value, with its byte order.
        base: The byte of the file from which addresses count.
    """

    references: Contiguous | Chunked
    dtype: str
    base: int


Layout = Contiguous | Chunked | Opaque | ByEnds | InHeaps
Plain = Contiguous | Chunked | Opaque
"""Of a dataset whose rows have one length."""
REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("number", "<u4")])
"""Of a row in a heap: IV.B and III.E of the HDF5 File Format Specification."""


def give_hdf5_its_plugins() -> None:
    """Lets the HDF5 library find the filters of the package hdf5plugin, where that is installed."""
    with suppress(ImportError):
        importlib.import_module("hdf5plugin")


def layout_of(dataset: h5py.Dataset, elsewhere: bool = False) -> Plain | InHeaps:
    """The layout of a dataset of numbers or texts with at least one dimension.

    Args:
        elsewhere: It lies in another file than the one that it was looked for in.
    """
    value = value_type(dataset)
    if value is not None:
        return _in_heaps(dataset, value, elsewhere)
    return _plain(dataset, dataset.dtype, elsewhere)


def value_type(dataset: h5py.Dataset) -> np.dtype | None:
    """What rows of different lengths have as values: the type of a number, TEXT; None where rows have one length."""
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return TEXT if dataset.dtype.kind == "O" else None
    value = h5py.check_vlen_dtype(dataset.dtype)
    return value if isinstance(value, np.dtype) else None


def _in_heaps(dataset: h5py.Dataset, value: np.dtype, elsewhere: bool) -> InHeaps | Opaque:
    why = "its rows have different lengths, and "
    if value is not TEXT and not dataset.id.get_type().get_super().equal(h5py.h5t.py_create(value, logical=True)):
        return Opaque("O", f"{why}its numbers are stored in a form that needs converting", False)
    created = dataset.file.id.get_create_plist()
    if created.get_sizes() != (8, 8):
        return Opaque("O", f"{why}its file has addresses of another size than 8 bytes", False)
    if dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
        return Opaque("O", f"{why}those never written have a value of their own", False)
    references = _plain(dataset, REFERENCE, elsewhere)
    if isinstance(references, Opaque):
        return Opaque("O", f"{why}{references.reason}; write it anew with h5py", False)
    return InHeaps(references, value.str, int(created.get_userblock()))


def _plain(dataset: h5py.Dataset, stored: np.dtype, elsewhere: bool) -> Plain:
    """The layout of a dataset whose rows are `stored` as they are."""
    shape = dataset.shape
    dtype = stored.str if stored.fields is None else f"|V{stored.itemsize}"
    if elsewhere:
        return Opaque(dtype, "it lies in another file")
    if stored is not REFERENCE and not _is_stored_as(dataset.id.get_type(), stored):
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
    if offset is None or dataset.id.get_storage_size() != math.prod(shape) * stored.itemsize:
        return Opaque(dtype, "its rows lie in the header, or were never written")
    return Contiguous(dtype, int(offset))


def _is_stored_as(kind: h5py.h5t.TypeID, stored: np.dtype) -> bool:
    """Whether bytes of a file are those of numpy's `stored`: numbers, or texts of one length that a zero ends."""
    if stored.kind == "S":
        return bool(kind.get_class() == h5py.h5t.STRING and kind.get_strpad() != h5py.h5t.STR_SPACEPAD)
    return bool(kind.equal(h5py.h5t.py_create(stored, logical=True)))
