"""What the header of a dataset declares, held against what its file can have: before anything is allocated for it."""

from __future__ import annotations

import math
import os
import zlib

import h5py
import numpy as np

from hpc_train.data.hdf5.codecs import (
    BZIP2,
    FLETCHER32,
    GZIP,
    GZIP_RATIO,
    NBIT,
    SCALEOFFSET,
    Filter,
    bz2_module,
    filters_of,
    inflated,
    name_of,
)
from hpc_train.data.hdf5.filter_plugins import FRAME_HEADER_BYTES, FRAME_SIZES
from hpc_train.data.hdf5.layout import Contiguous, InHeaps, Opaque, Plain
from hpc_train.data.memory import available_bytes, fits
from hpc_train.files import open_to_read

MAX_UNWRITTEN_BYTES = 1 << 30
"""Of rows that were never written, and are fill values."""
MAX_RATIO = 1000
"""To which a file as a whole may be compressed without a closer look: about what gzip reaches with zeros."""
MAX_UNWRITTEN_CHUNKS, INDEX_BYTES = 1 << 20, 8
"""Chunks that were never written; what one that was takes in a file at least."""
SAFE_BYTES = 128 << 20
"""What a chunk may be inflated to without a look before."""
SPARE_BYTES = 1 << 12
"""By which a filter's output may be longer than a chunk: other filters' headers and checksums."""


def why_not_plausible(dataset: h5py.Dataset, layout: Plain | InHeaps, size: int) -> str | None:
    """Why the dataset cannot be read, as the rest of a sentence that begins with it; None where it can.

    Args:
        size: Of the file that it lies in.
    """
    layout = layout.references if isinstance(layout, InHeaps) else layout
    shape, itemsize = dataset.shape, np.dtype(layout.dtype).itemsize
    rows, row_bytes = int(shape[0]), math.prod(shape[1:]) * itemsize
    declared = rows * max(1, row_bytes)
    if isinstance(layout, Contiguous) and layout.offset + declared <= size:
        return None
    text = f"declares {rows:,} rows of {row_bytes:,} bytes"
    if isinstance(layout, Contiguous):
        return f"{text} from byte {layout.offset:,} on, but the file ends at byte {size:,}"
    if dataset.chunks is not None:
        chunk = math.prod(dataset.chunks) * itemsize
        count = math.prod(-(-n // c) for n, c in zip(shape, dataset.chunks, strict=True))
        if count > MAX_UNWRITTEN_CHUNKS + size // INDEX_BYTES:
            return f"{text} in {count:,} chunks, more than a file of {size:,} bytes has"
        if not fits(chunk):
            return (
                f"has chunks of {chunk:,} bytes, too large for {available_bytes():,} bytes of free memory; write it "
                "with smaller ones (--chunk-rows of hpc-train shard)"
            )
    if isinstance(layout, Opaque) and (why_not := why_not_bounded(dataset)):
        return why_not
    if declared <= MAX_UNWRITTEN_BYTES + MAX_RATIO * (size if dataset.chunks else 0):
        return None
    held = _held_bytes(dataset, itemsize)
    return None if declared - held <= MAX_UNWRITTEN_BYTES else f"{text}, but {held:,} bytes of them were written"


def _held_bytes(dataset: h5py.Dataset, itemsize: int) -> int:
    """How much of the dataset was written, decoded."""
    properties = dataset.id.get_create_plist()
    if dataset.chunks is not None:
        return int(dataset.id.get_num_chunks() * math.prod(dataset.chunks)) * itemsize
    if properties.get_layout() == h5py.h5d.VIRTUAL:
        spaces = (properties.get_virtual_vspace(i) for i in range(properties.get_virtual_count()))
        return sum(_selected(space, math.prod(dataset.shape)) for space in spaces) * itemsize
    if properties.get_external_count():  # which was compared with what is declared
        return int(math.prod(dataset.shape)) * itemsize
    return int(dataset.id.get_storage_size())


def _selected(space: h5py.h5s.SpaceID, all_of_it: int) -> int:
    try:
        return int(space.get_select_npoints())
    except RuntimeError:  # it has no end: then its sources have the rows that are declared
        return all_of_it


def why_not_bounded(dataset: h5py.Dataset) -> str | None:
    """Why HDF5, which is to decode the dataset, might take far more memory than its chunks; as `why_not_plausible`.

    HDF5 gives a filter's output whatever size the stored chunk says; of chunks that may become large, it is read here.
    """
    if dataset.chunks is None:
        return None
    stages, elements = filters_of(dataset), math.prod(dataset.chunks)
    for stage in stages:
        sized = {NBIT: (2, 4), SCALEOFFSET: (2, 4)}.get(stage.id)
        if sized and len(stage.values) > 4 and [stage.values[i] for i in sized] != [elements, dataset.dtype.itemsize]:
            return f"has a filter {stage} for chunks of another size than its own; it is damaged"
    growing = [i for i, stage in enumerate(stages) if stage.grows]
    if not growing:
        return None
    last = growing[-1]
    if len(growing) > 1 or any(stage.id != FLETCHER32 for stage in stages[last + 1 :]):
        return f"is compressed more than once or in an odd order ({name_of(stages)}), which is not read"
    most = elements * dataset.dtype.itemsize + SPARE_BYTES
    found: list[tuple[int, int]] = []

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        if not chunk.filter_mask >> last & 1 and (stages[last].id != GZIP or chunk.size * GZIP_RATIO > SAFE_BYTES):
            found.append((chunk.byte_offset, chunk.size))

    dataset.id.chunk_iter(note)
    with open_to_read(dataset.file.filename, follow=True) as file:
        for offset, size in found:
            if size > 2 * most or not _is_bounded(file.fileno(), offset, size, stages[last], most):
                return f"has a chunk that {stages[last]} decodes to more than a chunk's {most - SPARE_BYTES:,} bytes"
    return None


def _is_bounded(descriptor: int, offset: int, size: int, stage: Filter, most: int) -> bool:
    """Whether a stored chunk decodes to `most` bytes at most; True where it is damaged, which HDF5 will find."""
    if stage.id in FRAME_SIZES:
        says = FRAME_SIZES[stage.id](os.pread(descriptor, min(size, FRAME_HEADER_BYTES), offset))
        return says is None or says <= most
    data = np.frombuffer(os.pread(descriptor, size, offset), np.uint8)
    try:
        if stage.id == BZIP2:
            bz2 = bz2_module()
            return bz2 is None or len(bz2.BZ2Decompressor().decompress(data.data, most + 1)) <= most
        left = most
        for piece in inflated(data):
            left -= piece.size
            if left < 0:
                return False
    except (OSError, ValueError, zlib.error):
        pass
    return True
