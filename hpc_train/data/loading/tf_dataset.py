"""Batches for one rank, as a tf.data.Dataset: from HDF5 shards or from the user's own function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpc_train.arguments import checked_arguments
from hpc_train.config.functions import CONTEXT, MAP_FN, call, checked, takes_one
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.types import padding_of
from hpc_train.data.hdf5.columns import Column
from hpc_train.data.hdf5.layout import Chunked, Opaque
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.loading import batch_source
from hpc_train.data.loading.batch_source import BEGINNING, ONE_THREAD, BatchReader, ReadResources
from hpc_train.data.ragged import TEXT, Ragged
from hpc_train.data.sampling.sampler import DataOrder, DataProgress, Sampler
from hpc_train.data.sampling.shuffle import derive_seed
from hpc_train.errors import UserError
from hpc_train.lazy import tf

PREFETCH_BYTES = 64 << 20
MIN_PREFETCH, MAX_PREFETCH = 2, 16
"""Batches that are kept ready: as many as fit into 64 MiB, within these bounds."""

FUNCTION_ADVICE = (
    "let input_fn do less for each row, in parallel (Dataset.map with num_parallel_calls, after batch) and ahead "
    "(prefetch), or give the data as HDF5 shards"
)


@checked_arguments
@dataclass(frozen=True)
class InputContext:
    """Which of the job's input pipelines an `input_fn` is asked for (as tf.distribute.InputContext does).

    Attributes:
        input_pipeline_id: This pipeline's number, from 0: the rank's, or with `run.mesh` that of the copy of the model.
        num_input_pipelines: How many there are: one a rank, or a copy.
        seed: A 64-bit seed of this pipeline's own.
    """

    input_pipeline_id: int
    num_input_pipelines: int
    seed: int


Loader = Callable[[str], Callable[..., Any]]
"""Finds the function that a job file names."""


def refuse_name(name: str) -> Callable[..., Any]:
    """The Loader of programs without a job file: UserError."""
    raise UserError(f"{name!r} is the name of a function; names are for job files, a program gives the function itself")


@dataclass
class OpenInput:
    """An input that batches can be taken from.

    Attributes:
        dataset: The batches; its steps are counted over the whole job.
        sampler: Their order, and `order` what a checkpoint keeps of it; None for an `input_fn`.
        notes: What the user should know about reading this data.
        advice: What to change where training waits for it.
    """

    dataset: tf.data.Dataset
    advice: str
    sampler: Sampler | None = None
    order: DataOrder | None = None
    notes: tuple[str, ...] = ()
    failures: list[BaseException] = field(default_factory=list)

    @property
    def failure(self) -> BaseException | None:
        """What reading raised, which TensorFlow reports in words of its own."""
        return self.failures[0] if self.failures else None

    def progress_at(self, step: int, batches: int | None = None) -> DataProgress:
        """How far the data is read when `step` steps are done (see Sampler.progress_at)."""
        return self.sampler.progress_at(step, batches) if self.sampler else DataProgress(step)


def open_training(
    source: HDF5Input | Callable[..., Any],
    shards: ShardSet | None,
    context: InputContext,
    progress: DataProgress = BEGINNING,
    resources: ReadResources = ONE_THREAD,
    load: Loader = refuse_name,
) -> AbstractContextManager[OpenInput]:
    """Opens the batches that this rank trains on from `progress` on. Local.

    An HDF5Input starts at any step at once; a function's dataset resumes by skipping `progress.step` batches.

    Raises:
        UserError: Too few rows, or too little memory for the shuffle buffer.
    """
    if not isinstance(source, HDF5Input):
        dataset = _call(source, context).skip(progress.step)
        return nullcontext(OpenInput(_finished(dataset, resources.threads), FUNCTION_ADVICE))
    assert shards is not None
    rank, size = context.input_pipeline_id, context.num_input_pipelines
    reading = batch_source.training_reader(source, shards, rank, size, progress, resources)
    return _opened(source, shards, reading, resources.threads, load, source.batch_size)


def open_pass(
    source: HDF5Input, shards: ShardSet, resources: ReadResources = ONE_THREAD, load: Loader = refuse_name
) -> AbstractContextManager[OpenInput]:
    """Opens one pass over what is trained on: each row once, in batches and an order as of one rank's training. Local.

    Raises:
        UserError: As open_training.
    """
    each = replace(source, bootstrap=None)
    reading = batch_source.training_reader(each, shards, 0, 1, resources=resources, once=True)
    return _opened(each, shards, reading, resources.threads, load)


def open_evaluation(
    source: HDF5Input | Callable[..., Any],
    shards: ShardSet | None,
    context: InputContext,
    steps: int | None,
    resources: ReadResources = ONE_THREAD,
    load: Loader = refuse_name,
) -> AbstractContextManager[OpenInput]:
    """Opens the batches that this rank evaluates; all ranks together evaluate `steps` batches, or all rows. Local.

    A function's dataset gives this rank's part of the data, of which it takes its part of `steps`.
    """
    rank, size = context.input_pipeline_id, context.num_input_pipelines
    if not isinstance(source, HDF5Input):
        dataset = _call(source, context)
        part = dataset if steps is None else dataset.take(len(range(rank, steps, size)))
        return nullcontext(OpenInput(_finished(part, resources.threads), FUNCTION_ADVICE))
    assert shards is not None
    reading = batch_source.evaluation_reader(source, shards, rank, size, steps, resources)
    return _opened(source, shards, reading, resources.threads, load)


def _call(source: Callable[..., Any], context: InputContext) -> tf.data.Dataset:
    """This rank's batches: those that an input_fn of a context gives, or of one without arguments every n-th."""
    dataset = call(source, context, CONTEXT)
    if not isinstance(dataset, tf.data.Dataset):
        raise UserError(f"input_fn returned {type(dataset).__name__}; it must return a tf.data.Dataset of batches")
    if context.num_input_pipelines > 1 and not takes_one(source, CONTEXT):
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset


@contextmanager
def _opened(
    source: HDF5Input,
    shards: ShardSet,
    reading: AbstractContextManager[BatchReader],
    threads: int,
    load_map_fn: Loader,
    rows: int | None = None,
) -> Iterator[OpenInput]:
    """`rows`: how many each batch has; None: the last one may have fewer."""
    columns = shards.columns
    map_fn = source.map_fn
    if isinstance(map_fn, str):
        map_fn = checked(f"map_fn: {map_fn}", load_map_fn(map_fn), MAP_FN)
    types = [kind for column in columns for kind in _types(column)]
    parallel = {"num_parallel_calls": threads, "deterministic": True} if threads > 1 else {}
    failures: list[BaseException] = []
    # TensorFlow keeps the functions below for as long as the process lives; what they read from must go before.
    box: list[BatchReader] = []

    def load(number: np.int64) -> list[np.ndarray]:
        try:
            groups = box[0].groups
            seeds = [box[0].seed_of(k) if map_fn is not None else 0 for k in groups.steps_of(int(number))]
            arrays = [array for rows in groups.group(int(number)) for array in _arrays(rows)]
            return [*arrays, np.array(seeds, np.uint64).view(np.int32).reshape(-1, 2)]
        except BaseException as error:
            failures.append(error)
            raise

    def group_of(number: tf.Tensor) -> tf.data.Dataset:
        *arrays, seeds = tf.numpy_function(load, [number], [*types, tf.int32])
        seeds.set_shape([None, 2])
        left = iter(arrays)
        return _features_and_label(shards, [_tensor(column, left) for column in columns]), seeds

    def batches_of(batch: Any, seeds: tf.Tensor) -> tf.data.Dataset:
        steps = tf.shape(seeds, out_type=tf.int64)[0]

        def step_of(k: tf.Tensor) -> Any:
            part = slice(k * source.batch_size, (k + 1) * source.batch_size)
            own = tf.nest.map_structure(lambda array: array[part], batch)
            if source.pad:
                own = _padded(shards, source, own)
            own = tf.nest.map_structure(lambda array: _of_rows(array, rows), own)
            return (own, seeds[k]) if map_fn is not None else own if len(own) > 1 else own[0]

        return tf.data.Dataset.range(steps).map(step_of)

    with reading as reader:
        box.append(reader)
        groups, count = reader.groups, np.iinfo(np.int64).max
        if groups.end is not None:
            count = max(0, -(-(groups.end - groups.first) // groups.steps))
        as_it_is = tf.autograph.experimental.do_not_convert  # nothing in these depends on a tensor's value
        dataset = tf.data.Dataset.range(count).map(as_it_is(group_of)).prefetch(1).flat_map(as_it_is(batches_of))
        if map_fn is not None:
            takes_seed = "seed" in inspect.signature(map_fn).parameters

            def mapped(batch: tuple[Any, ...], seed: Any) -> Any:
                return map_fn(*batch, seed=seed) if takes_seed else map_fn(*batch)

            dataset = dataset.map(mapped, **parallel)
        depth = min(MAX_PREFETCH, max(MIN_PREFETCH, PREFETCH_BYTES // max(1, source.batch_size * shards.row_bytes)))
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = _finished(dataset.prefetch(depth).with_options(options), threads)
        try:
            yield OpenInput(dataset, _advice(source, shards), reader.sampler, reader.order, reader.notes, failures)
        finally:
            box.clear()


def _finished(dataset: tf.data.Dataset, threads: int) -> tf.data.Dataset:
    """`dataset` with threads apart from those that compute, unless it has some; one more, which waits for the others.

    A rank of one core has one thread to compute, which would wait for the dataset while the dataset waited for it.
    Batches are already on this rank's GPU when they are asked for, where it has one.
    """
    if not dataset.options().threading.private_threadpool_size:
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads + 1
        dataset = dataset.with_options(options)
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus or any(spec.dtype == tf.string for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset  # texts stay in the host's memory
    return dataset.apply(tf.data.experimental.prefetch_to_device(gpus[0].name, buffer_size=2))


def _advice(source: HDF5Input, shards: ShardSet) -> str:
    compressed = any(isinstance(layout, Chunked) and layout.filters for shard in shards.layouts for layout in shard)
    opaque = {layout.reason for shard in shards.layouts for layout in shard if isinstance(layout, Opaque)}
    ways = ["a lighter map_fn"] if source.map_fn else []
    ways += ["shards without compression (hpc-train shard)"] if compressed else []
    ways += [f"shards that this package reads by itself (now only HDF5 can: {min(opaque)})"] if opaque else []
    ways += ["shuffle: block"] if source.shuffle == "global" else []
    return f"what helps: {', '.join([*ways, 'more cores a rank'])}"


def _features_and_label(shards: ShardSet, arrays: list[Any]) -> tuple[Any, ...]:
    count = len(shards.features)
    features = _tensor_or_dict(shards.features, arrays[:count])
    return (features, _tensor_or_dict(shards.labels, arrays[count:])) if shards.labels else (features,)


def _types(column: Column) -> list[Any]:
    """Of the arrays that `_arrays` makes of a column's rows."""
    if column.is_text:
        return [tf.string]
    return [tf.as_dtype(column.dtype), *([tf.int64] if column.kind == "ragged" else [])]


def _arrays(rows: Rows) -> list[np.ndarray]:
    """A column's rows as TensorFlow takes them: an array, or values and lengths."""
    if not isinstance(rows, Ragged):
        return [rows]
    return [rows.texts()] if rows.values.dtype == TEXT else [rows.values, rows.lengths]


def _tensor(column: Column, arrays: Iterator[Any]) -> Any:
    """The tensor of a column's rows, from its next arrays."""
    array = next(arrays)
    if not column.takes_padding:
        array.set_shape([None, *column.shape])
        return array
    lengths = next(arrays)
    array.set_shape([None, *column.shape])
    lengths.set_shape([None])
    return tf.RaggedTensor.from_row_lengths(array, lengths, validate=False)


def _of_rows(array: Any, rows: int | None) -> Any:
    """`array`, known to have so many rows."""
    if rows is None or isinstance(array, tf.RaggedTensor):
        return array
    return tf.ensure_shape(array, [rows, *array.shape[1:]])


def _padded(shards: ShardSet, source: HDF5Input, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """A batch whose ragged columns are padded, each to its longest row or to the length given."""

    def padded(columns: Sequence[Column], tensors: Any) -> Any:
        if isinstance(tensors, dict):
            return {column.key: one(column, tensors[column.key]) for column in columns}
        return one(columns[0], tensors)

    def one(column: Column, tensor: Any) -> Any:
        if column.name not in source.pad:
            return tensor
        value, length = padding_of(source.pad[column.name])
        return tensor.to_tensor(tf.cast(value, tensor.dtype), shape=[None, length, *column.shape])

    return tuple(padded(*pair) for pair in zip((shards.features, shards.labels), batch, strict=False))


def _tensor_or_dict(columns: Sequence[Column], arrays: list[Any]) -> Any:
    if len(columns) == 1 and columns[0].given is None:
        return arrays[0]
    return {column.key: array for column, array in zip(columns, arrays, strict=True)}


def context_for(part: int, parts: int, source: Any, tf_random_seed: int | None) -> InputContext:
    """The input pipeline of one of so many parts."""
    seed = source.seed if isinstance(source, HDF5Input) else tf_random_seed or 0
    return InputContext(part, parts, derive_seed(seed, 0, part))
