"""Batches for one rank, as a tf.data.Dataset: from HDF5 shards or from the user's own function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.config.specs import HDF5Input
from hpc_train.data.reader import Reader
from hpc_train.data.sampler import Sampler, evaluation_batches
from hpc_train.data.shards import Column, ShardSet
from hpc_train.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

PREFETCH_BATCHES = 4


@dataclass(frozen=True)
class InputContext:
    """Tells an `input_fn` which of the job's input pipelines it is asked for (as tf.distribute.InputContext does).

    Attributes:
        input_pipeline_id: This pipeline's number, from 0: the rank.
        num_input_pipelines: How many there are: one a rank.
        seed: A 64-bit seed of this pipeline's own.
    """

    input_pipeline_id: int
    num_input_pipelines: int
    seed: int


def training_sampler(source: HDF5Input, rows: int, rank: int, size: int) -> Sampler:
    """The order in which `rank` reads `source`.

    Raises:
        UserError: Fewer rows than one global batch.
    """
    if rows < source.batch_size * size:
        raise UserError(
            f"{source.shards[0]}: {rows} rows are fewer than one global batch: batch_size {source.batch_size} x "
            f"{size} ranks = {source.batch_size * size}; take a smaller batch_size or fewer ranks"
        )
    return Sampler(rows, source.batch_size, rank, size, source.seed, source.shuffle)


@contextmanager
def training_batches(
    source: HDF5Input | Callable[..., Any], shards: ShardSet | None, context: InputContext, start_step: int
) -> Iterator[tf.data.Dataset]:
    """Opens the batches that this rank trains on from global step `start_step` on. Local.

    An HDF5Input starts at any step at once; a function's dataset resumes by skipping `start_step` batches.
    """
    if not isinstance(source, HDF5Input):
        yield _call(source, context).skip(start_step)
        return
    assert shards is not None
    sampler = training_sampler(source, shards.rows, context.input_pipeline_id, context.num_input_pipelines)
    end = np.iinfo(np.int64).max if source.epochs is None else source.epochs * sampler.steps_per_epoch
    with Reader(shards) as reader:
        yield _dataset(shards, start_step, max(start_step, end), lambda step: reader.read(sampler.rows_at(int(step))))


@contextmanager
def evaluation_dataset(
    source: HDF5Input | Callable[..., Any], shards: ShardSet | None, context: InputContext, steps: int | None
) -> Iterator[tf.data.Dataset]:
    """Opens the batches that this rank evaluates; all ranks together evaluate `steps` batches, or all rows. Local.

    A function's dataset gives this rank's part of the data, of which it takes its part of `steps`.
    """
    rank, size = context.input_pipeline_id, context.num_input_pipelines
    if not isinstance(source, HDF5Input):
        dataset = _call(source, context)
        yield dataset if steps is None else dataset.take(len(range(rank, steps, size)))
        return
    assert shards is not None
    batches = evaluation_batches(shards.rows, source.batch_size, steps, rank, size)
    with Reader(shards) as reader:
        yield _dataset(shards, 0, len(batches), lambda k: reader.read(np.arange(*batches[int(k)])))


def _call(source: Callable[..., Any], context: InputContext) -> tf.data.Dataset:
    import tensorflow as tf

    dataset = source(context)
    if not isinstance(dataset, tf.data.Dataset):
        raise UserError(f"input_fn returned {type(dataset).__name__}; it must return a tf.data.Dataset of batches")
    return dataset


def _dataset(shards: ShardSet, first: int, end: int, read: Callable[[np.int64], list[np.ndarray]]) -> tf.data.Dataset:
    import tensorflow as tf

    columns = shards.columns

    def load(number: tf.Tensor) -> Any:
        arrays = tf.numpy_function(read, [number], [tf.as_dtype(c.dtype) for c in columns])
        for array, column in zip(arrays, columns, strict=True):
            array.set_shape([None, *column.shape])
        return _structure(shards, arrays)

    return tf.data.Dataset.range(first, end).map(load).prefetch(PREFETCH_BATCHES)


def _structure(shards: ShardSet, arrays: list[Any]) -> Any:
    features = _tensor_or_dict(shards.features, arrays[: len(shards.features)])
    if not shards.labels:
        return features
    return features, _tensor_or_dict(shards.labels, arrays[len(shards.features) :])


def _tensor_or_dict(columns: tuple[Column, ...], arrays: list[Any]) -> Any:
    return arrays[0] if len(columns) == 1 else {c.name: a for c, a in zip(columns, arrays, strict=True)}
