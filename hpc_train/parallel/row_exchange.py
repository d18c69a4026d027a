"""Rows of a table that ranks hold in parts, looked up by all of them at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hpc_train.distributed.collectives import Collectives, cut
from hpc_train.distributed.placement import Rows


def looked_up(table: Any, rows: int, begin: int, ids: Any, ranks: Collectives) -> Any:
    """The rows with the numbers `ids` of a table of so many `rows`, cut as `cut` says. Collective.

    Each rank asks each other one once for each of its rows that it needs. The gradient of `table` is rows, each once:
    the sum of what all ranks have for it, divided by the number of ranks, which is their mean.

    Args:
        table: A tf.Variable of this rank's rows, the first of which has the number `begin`.
        ids: int64 `[N]`, each from 0 to below `rows`.
    """
    wanted, places = tf.unique(ids)
    order = tf.argsort(wanted)
    wanted = tf.gather(wanted, order)
    ends = tf.constant([sum(cut(rows, ranks.ranks)[: rank + 1]) for rank in range(ranks.ranks)], tf.int64)
    owners = tf.searchsorted(ends, wanted, side="right")
    counts = tf.math.bincount(owners, minlength=ranks.ranks, maxlength=ranks.ranks)
    asked, asked_counts = ranks.alltoallv(wanted, counts)
    own, own_places = tf.unique(asked - begin)
    given = _spread(_averaged(tf.gather(table, own), ranks.ranks), own_places)
    answers, _ = ranks.alltoallv(given, asked_counts)
    return _spread(answers, tf.gather(tf.math.invert_permutation(order), places))


def own_rows(table: Any, begin: int, ids: Any) -> Any:
    """Those of the rows `ids` that this rank holds, and zeros in place of the others: the shape without an exchange."""
    count = table.shape[0]
    if not count:
        return tf.zeros([tf.size(ids), table.shape[1]], table.dtype) + tf.reduce_sum(table)
    held = tf.logical_and(ids >= begin, ids < begin + count)
    found = tf.gather(table, tf.where(held, ids - begin, 0))
    return tf.where(held[:, tf.newaxis], found, tf.zeros([], table.dtype))


def read_rows(read: Rows, ids: Any, table: Any) -> Any:
    """The rows `ids` of a table that lies outside of the model, as `read` gives them; `table` has none of them."""
    kind = table.dtype
    stored = kind if np.dtype(kind.as_numpy_dtype).kind in "iuf" else tf.as_dtype(f"uint{8 * kind.size}")
    rows = tf.numpy_function(read, [ids], stored, stateful=False)
    rows.set_shape([None, table.shape[1]])
    return rows if stored == kind else tf.bitcast(rows, kind)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _spread(rows: Any, places: Any) -> Any:
    """Rows by their places, of which several may be one; the gradient is a whole tensor."""
    count = tf.shape(rows, places.dtype)[0]
    return tf.gather(rows, places), lambda by: (tf.math.unsorted_segment_sum(by, places, count), None)


def _averaged(rows: Any, ranks: int) -> Any:
    """`rows`, of whose gradient a part of so many is passed on."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def same(given: Any) -> Any:
        return tf.identity(given), lambda by: by / tf.cast(ranks, by.dtype)

    return same(rows) if ranks > 1 else rows
