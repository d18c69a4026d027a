"""Models whose large variables take addresses, and no memory, so that a model of any size can be looked at."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpc_train.distributed.tensors import dtype_of, nbytes_of, tensor_of
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model.batch import example
from hpc_train.model.builder import try_out
from hpc_train.telemetry.units import size

FROM_BYTES = 1 << 20
"""Smaller variables are as they always are."""
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's, which Python does not know everywhere


@contextmanager
def without_memory() -> Iterator[None]:
    """A context in which an initializer's values for a large variable are zeros, of pages that nobody has touched.

    Such a page takes memory once something is written to it. All of these variables have the same pages.

    Raises:
        UserError: This process may not have so many addresses (`ulimit -v`).
    """
    regions: list[mmap.mmap] = []

    def zeros(variable: Any) -> Any:
        nbytes = nbytes_of(variable)
        if not regions or len(regions[-1]) < nbytes:
            regions.append(_untouched(nbytes))
        return tensor_of(np.frombuffer(regions[-1], np.uint8, nbytes).view(dtype_of(variable)).reshape(variable.shape))

    kind = keras.Variable
    original: Callable[[Any, Any], None] = kind._initialize_with_initializer

    def initialize(variable: Any, initializer: Any) -> None:
        numbers = tf.as_dtype(variable.dtype).is_floating or tf.as_dtype(variable.dtype).is_integer
        if numbers and nbytes_of(variable) >= FROM_BYTES and tf.executing_eagerly():
            variable._initialize(zeros(variable))
        else:
            original(variable, initializer)

    kind._initialize_with_initializer = initialize
    try:
        yield
    finally:
        kind._initialize_with_initializer = original


def _untouched(nbytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    try:
        return mmap.mmap(-1, nbytes, flags=flags)
    except OSError as error:
        raise UserError(
            f"the model does not fit here: a variable of {size(nbytes)} cannot have its addresses ({error.strerror}); "
            "plan where this process may have more (ulimit -v)"
        ) from None


def traced(model: keras.Model, dataset: tf.data.Dataset, name: str) -> None:
    """A trial of build_model that computes nothing: traces how a batch is evaluated, which makes all variables."""
    if model.run_eagerly:
        try_out(model, dataset)
    else:
        step = tf.function(lambda batch: model.test_step(batch), autograph=False)
        step.get_concrete_function(batch_specs(dataset, model))


def batch_specs(dataset: tf.data.Dataset, model: keras.Model) -> Any:
    """Of a batch that `model` can be tried out with."""
    return tf.nest.map_structure(tf.type_spec_from_value, example(dataset, model))
