"""Hashes of values, the same on any machine. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_train.data.sources.arrow import texts_of_arrow

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hashes_of(values: Any) -> np.ndarray:
    """Hashes of an array of Arrow, of large_binary, int64 or uint64: uint64 `[n]`."""
    with np.errstate(over="ignore"):
        if str(values.type) != "large_binary":
            return mixed(np.asarray(values).view(np.uint64))
        texts = texts_of_arrow(values)
        lengths = texts.lengths
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        powers = np.multiply.accumulate(np.full(int(lengths.max(initial=0)) + 1, _FACTOR, np.uint64))
        products = (texts.values.view(np.uint8).astype(np.uint64) + np.uint64(1)) * powers[places]
        sums = np.append(np.uint64(0), np.cumsum(products, dtype=np.uint64))
        return mixed(sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64))


def mixed(words: np.ndarray) -> np.ndarray:
    """splitmix64's last steps: each bit of a word changes about half of the bits of the result."""
    with np.errstate(over="ignore"):
        words = np.asarray(words ^ (words >> np.uint64(30))) * _MIX[0]
        words = (words ^ (words >> np.uint64(27))) * _MIX[1]
        found: np.ndarray = words ^ (words >> np.uint64(31))
        return found
