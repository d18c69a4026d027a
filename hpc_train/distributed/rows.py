"""Gradients that are some rows of a variable."""

from __future__ import annotations

from hpc_train.lazy import tf


def each_once(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """`gradient` with one row for each that it has, the sum of its rows for it: as optimizers and norms count rows."""
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
