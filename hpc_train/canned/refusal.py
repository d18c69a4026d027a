"""Values of a batch that are refused: at once where a model is called eagerly, by an assertion in a graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpc_train.errors import UserError


def allowed_alone(values: Any, wrong: Any, what: str) -> Any:
    """`values`, of which none is to be `wrong`, a bool for each; `what` says what is, and the way on.

    Raises:
        UserError: One is; with the first three. In a graph tf.errors.InvalidArgumentError with the same text, when it
            runs.
    """
    with tf.device("CPU"):
        refused = tf.boolean_mask(values, wrong)
        if tf.executing_eagerly():
            if refused.shape[0]:
                raise UserError(f"{what}: {', '.join(map(str, refused[:3].numpy().tolist()))}")
            return values
        with tf.control_dependencies([tf.debugging.Assert(tf.size(refused) == 0, [f"{what}:", refused])]):
            return tf.identity(values)
