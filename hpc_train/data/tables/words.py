"""Texts as words, as Keras's TextVectorization cuts them. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

PUNCTUATION = r"""[!"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~']"""
"""What Keras's TextVectorization strips; it makes ASCII letters small, and cuts at blanks."""


def words_of(texts: Any) -> tuple[Any, np.ndarray]:
    """The words of an array of texts of Arrow, none of them null, and the row of each: int64 `[words]`.

    ASCII letters become small, punctuation goes, and blanks are between words.
    """
    plain = compute.ascii_lower(texts.cast(pa.large_string()))
    lists = compute.ascii_split_whitespace(compute.replace_substring_regex(plain, PUNCTUATION, ""))
    words, rows = lists.flatten(), np.repeat(np.arange(len(lists)), np.asarray(lists.value_lengths()))
    is_word = compute.greater(compute.binary_length(words), 0)
    return words.filter(is_word), rows[np.asarray(is_word)]
