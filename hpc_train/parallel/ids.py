"""Ids of rows: whole numbers; those that a table does not have are refused, with how many and the first of them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpc_train.distributed.devices import in_xla
from hpc_train.errors import UserError

SHOWN = 8
"""Ids that an error names."""


def check_kind(inputs: Any, layer: str) -> None:
    """UserError where what `layer` gets as ids, a tensor or a symbolic one, are no whole numbers."""
    kind = tf.as_dtype(inputs.dtype)
    if not kind.is_integer:
        raise UserError(
            f"{layer} got ids of {kind.name}; give it whole numbers, such as those of keras.Input(shape, dtype='int32')"
        )


def whole_numbers(inputs: Any, layer: str) -> Any:
    """What `layer` gets as ids, as a tensor of int64, which holds all rows that a table can have.

    Raises:
        UserError: They are no whole numbers.
    """
    given = tf.convert_to_tensor(inputs)
    check_kind(given, layer)
    return tf.cast(given, tf.int64)


def in_table(ids: Any, rows: int, layer: str) -> Any:
    """`ids`, each of which is a row of a table of so many `rows`; `layer` says whose.

    XLA (jit_compile=True) has no texts and no errors: there they are as they are.

    Raises:
        UserError: One is not. In a graph tf.errors.InvalidArgumentError with the same text, when it runs.
    """
    if in_xla():
        return ids
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
