"""Ids of rows that a table does not have: refused, with how many there are and the first of them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpc_train.errors import UserError

SHOWN = 8
"""Ids that an error names."""


def in_table(ids: Any, rows: int, layer: str) -> Any:
    """`ids`, each of which is a row of a table of so many `rows`; `layer` says whose.

    Raises:
        UserError: One is not. In a graph tf.errors.InvalidArgumentError with the same text, when it runs.
    """
    known = tf.logical_and(ids >= 0, ids < rows)
    every = tf.reduce_all(known)
    if tf.executing_eagerly():
        if not every:
            raise UserError(_refusal(ids, known, rows, layer).numpy().decode())
        return ids
    refused = tf.cond(every, tf.no_op, lambda: tf.debugging.Assert(every, [_refusal(ids, known, rows, layer)]))
    with tf.control_dependencies([refused]):
        return tf.identity(ids)


def _refusal(ids: Any, known: Any, rows: int, layer: str) -> Any:
    unknown = tf.boolean_mask(ids, tf.logical_not(known))
    return tf.strings.format(
        f"{layer}: {{}} of {{}} ids are outside its table, which has the rows 0 to {rows - 1}: {{}}",
        (tf.size(unknown), tf.size(ids), unknown[:SHOWN]),
        summarize=SHOWN,
    )
