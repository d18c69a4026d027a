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
    """What `layer` gets as ids, as a tensor of int64; uint64 as it is, of which int64 does not hold all.

    Raises:
        UserError: They are no whole numbers.
    """
    given = tf.convert_to_tensor(inputs)
    check_kind(given, layer)
    return given if given.dtype == tf.uint64 else tf.cast(given, tf.int64)


def in_table(ids: Any, rows: int, layer: str) -> Any:
    """`ids` in int64, each of which is a row of a table of so many `rows`; `layer` says whose.

    XLA (jit_compile=True) has no texts and no errors: there they are as they are.

    Raises:
        UserError: One is not. In a graph tf.errors.InvalidArgumentError with the same text, when it runs.
    """
    given, ids = ids, tf.cast(ids, tf.int64)  # above 2^63: negative
    if in_xla():
        return ids
    known = tf.logical_and(ids >= 0, ids < rows)
    every = tf.reduce_all(known)
    if tf.executing_eagerly():
        if not every:
            raise UserError(_refusal(given, known, rows, layer).numpy().decode())
        return ids
    refused = tf.cond(every, tf.no_op, lambda: tf.debugging.Assert(every, [_refusal(given, known, rows, layer)]))
    with tf.control_dependencies([refused]):
        return tf.identity(ids)


def _refusal(ids: Any, known: Any, rows: int, layer: str) -> Any:
    unknown = tf.boolean_mask(ids, tf.logical_not(known))
    return tf.strings.format(
        f"{layer}: {{}} of {{}} ids are outside its table, which has the rows 0 to {rows - 1}: {{}}",
        (tf.size(unknown), tf.size(ids), unknown[:SHOWN]),
        summarize=SHOWN,
    )
