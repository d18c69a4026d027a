"""Initial values of a table that no rank holds: drawn in blocks of rows, each from a seed of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hpc_train.distributed.tensors import filled_by
from hpc_train.errors import UserError

BLOCK_ROWS = 4096
"""Part of what a seed means: other blocks have other values."""


def block_values(initializer: Any, rows: int, width: int, begin: int, end: int) -> Callable[..., Any]:
    """An initializer, as Keras calls them, of the rows `begin` to `end` of a table whose values `initializer` draws.

    A block is drawn whole, by Keras's own generator, whoever needs rows of it. So all parts of a table are those of the
    whole one, to the bit.

    Raises:
        UserError: `initializer` looks at the table as a whole, or has no seed that could be another one for each block.
    """
    draw = _drawing(initializer, rows, width)

    def values(shape: Any, dtype: Any) -> Any:
        def fill(table: np.ndarray) -> None:
            for first in range(begin // BLOCK_ROWS * BLOCK_ROWS, end, BLOCK_ROWS):
                last = min(first + BLOCK_ROWS, rows)
                low, high = max(first, begin), min(last, end)
                table[low - begin : high - begin] = np.asarray(draw(first, last, dtype))[low - first : high - first]

        with tf.init_scope():
            return filled_by((end - begin, width), dtype, fill)

    return values


def _drawing(initializer: Any, rows: int, width: int) -> Callable[[int, int, Any], Any]:
    """A function that gives the rows of a block, from the first to the last, in a dtype."""
    known = keras.initializers
    if isinstance(initializer, known.Constant):  # whose value may be an array
        whole = np.broadcast_to(initializer.value, (rows, width))
        return lambda first, last, dtype: np.asarray(whole[first:last])
    if isinstance(initializer, known.Zeros | known.Ones):
        return lambda first, last, dtype: initializer((last - first, width), dtype=dtype)
    kind = getattr(initializer, "__class__", type(initializer)).__name__
    config = initializer.get_config() if isinstance(initializer, known.Initializer) else {}
    if isinstance(initializer, known.Orthogonal) or "seed" not in config:
        raise UserError(
            f"ShardedEmbedding.embeddings_initializer: the values of {kind} cannot be drawn in blocks of rows; take "
            "one of Keras's with a seed (RandomUniform, TruncatedNormal, GlorotUniform …; not Orthogonal), Zeros, Ones "
            "or Constant, or a class derived from keras.initializers.Initializer that has `seed` in its get_config"
        )
    start = _number_of(getattr(initializer, "seed", config["seed"]))

    def draw(first: int, last: int, dtype: Any) -> Any:
        seed = (start + first // BLOCK_ROWS) % 2**32
        return _seeded(initializer, config, seed, rows, last - first, width)((last - first, width), dtype=dtype)

    return draw


def _seeded(initializer: Any, config: dict[str, Any], seed: int, rows: int, part: int, width: int) -> Any:
    """`initializer` with another seed, for a block of `part` rows."""
    if not isinstance(initializer, keras.initializers.VarianceScaling):
        return type(initializer).from_config({**config, "seed": seed})
    here, whole = ({"fan_in": n, "fan_out": width, "fan_avg": (n + width) / 2}[initializer.mode] for n in (part, rows))
    scale = initializer.scale * max(1, here) / max(1, whole)  # the fans are those of the whole table
    config = {"scale": scale, "mode": initializer.mode, "distribution": initializer.distribution, "seed": seed}
    return keras.initializers.VarianceScaling.from_config(config)


def _number_of(seed: Any) -> int:
    """Where the seeds of blocks begin; drawn as Keras does where there is none."""
    if isinstance(seed, keras.random.SeedGenerator):
        words = [int(word) for word in np.asarray(seed.next())]
    else:
        words = [random.randint(1, 10**9) if seed is None else int(seed) % 2**64]
    return int(np.random.SeedSequence(words).generate_state(1)[0])
