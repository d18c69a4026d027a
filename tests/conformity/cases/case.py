"""One small model, its data, and what may be expected of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np


@dataclass(frozen=True)
class Case:
    name: str
    """Unique, in snake_case."""

    build: Callable[[dict[str, Any]], keras.Model]
    """A compiled model of new layers, the same for the same `keras.utils.set_random_seed`.

    Of its parameters, `rows` is how many rows of a batch this rank gets: only models with fixed batches read it.
    """

    data: Callable[[np.random.Generator, int], tuple[Any, ...]]
    """(rng, rows) -> (x, y) or (x, y, sample_weight), each an array or a dict of arrays, with a row an example."""

    batch: int = 12
    """Rows of a batch, of all ranks together."""

    steps: int = 4

    random: bool = False
    """The forward pass draws random numbers in training: not equal between one and two ranks."""

    rows_coupled: bool = False
    """Loss or layers compare the rows of a batch: what they see is a rank's rows."""

    own_train_step: bool = False

    asynchronous: bool = True
    """Makes sense where ranks do not wait for each other."""

    exports: bool = True
    """Can be exported as a SavedModel that serves x."""

    note: str = ""
    """What is special, in one line."""
