"""Texts of Arrow's arrays as Ragged, and back. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from hpc_train.data.ragged import TEXT, Ragged


def texts_of_arrow(array: Any) -> Ragged:
    """The texts of an array, or chunked array, of texts or bytes, of which none is missing."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    array = array.cast(pa.large_binary())
    offsets, values = _offsets(array), array.buffers()[2]
    letters = np.frombuffer(values, TEXT) if values is not None and values.size else np.empty(0, TEXT)
    return Ragged(letters[offsets[0] : offsets[-1]] if len(offsets) else letters, np.diff(offsets))


def arrow_of_texts(texts: Ragged) -> Any:
    """Texts as an array of large_binary, none of them missing."""
    ends = np.append(0, np.cumsum(texts.lengths)).astype(np.int64)
    letters = np.ascontiguousarray(texts.values).view(np.uint8)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(letters)]
    )


def _offsets(array: Any) -> np.ndarray:
    stored = array.buffers()[1]
    if stored is None:
        return np.zeros(1, np.int64)
    return np.frombuffer(stored, np.int64)[array.offset : array.offset + len(array) + 1]
