"""Weights of classes as weights of rows, as Keras's `fit(class_weight=…)` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc_train.errors import UserError
from hpc_train.lazy import tf

WHERE = "train.class_weight"


def weighted(dataset: tf.data.Dataset, class_weight: Mapping[int, float], threads: int = 1) -> tf.data.Dataset:
    """Batches `(x, y)` of `dataset` as `(x, y, weight)`, a float32 weight for each label.

    Labels are classes, `[B]` or `[B, 1]`, or one number a class, of which the largest counts (`[B, classes]`), as Keras
    has it. A class that is not named weighs 1.

    Raises:
        UserError: Batches have no label, several, or weights already.
    """
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) < 2:
        raise UserError(f"{WHERE}: the training data have no label to weigh by; name it in data.train.label")
    if len(spec) > 2:
        raise UserError(
            f"{WHERE}: the batches of input_fn or map_fn have sample weights already, which Keras does not take "
            "together with class weights; multiply them there, and leave class_weight out"
        )
    label = spec[1]
    if not isinstance(label, tf.TensorSpec):
        raise UserError(
            f"{WHERE} is for models with one label; this one has several: return (features, label, sample_weight) from "
            "a map_fn, the weights by the same names as the labels"
        )
    if not (label.dtype.is_integer or label.dtype.is_floating or label.dtype.is_bool):
        raise UserError(f"{WHERE}: labels are {label.dtype.name}, and no numbers of classes; leave class_weight out")
    known = sorted(class_weight)
    table = tf.constant([class_weight.get(number, 1.0) for number in range(known[-1] + 1)] + [1.0], tf.float32)

    def add(x: Any, y: Any) -> tuple[Any, Any, Any]:
        if y.shape.rank is not None and y.shape.rank >= 2:
            classes = tf.squeeze(y, -1) if y.shape[-1] == 1 else tf.argmax(tf.cast(y, tf.float32), -1)
        else:
            classes = y
        number = tf.cast(tf.round(tf.cast(classes, tf.float32)), tf.int32)
        named = tf.logical_and(number >= 0, number <= known[-1])
        return x, y, tf.gather(table, tf.where(named, number, known[-1] + 1))

    parallel = {"num_parallel_calls": threads, "deterministic": True} if threads > 1 else {}
    return dataset.map(add, **parallel)
