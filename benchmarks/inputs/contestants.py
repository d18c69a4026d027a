"""Who delivers rows: hpc_train; and copies, h5py, TFRecord, from_generator, bare zlib and bare file reads."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from support import page_cache
from support.timing import Competitor, in_turn

from hpc_train import HDF5Input
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.batch_source import ReadResources, training_reader, training_sampler
from hpc_train.data.loading.tf_dataset import InputContext, OpenInput, open_training
from inputs.data import Data, aligned_empty

if TYPE_CHECKING:
    import tensorflow as tf

READER, DATASET, MEMCPY, TFRECORD, ZLIB = "reader", "tf.data", "memcpy", "TFRecord", "zlib"
SEED = 1
SHUFFLE_SHARE = 0.1
FILE_BLOCK_BYTES = 1 << 20
DRAIN_SECS = 0.05
MANY_STEPS = 1 << 30
WHOLE_PASS_SECS = 5.0
Read = Callable[[int], Sequence[np.ndarray]]


def _source(data: Data, layout: str, order: str) -> tuple[HDF5Input, ShardSet]:
    paths, batch = tuple(data.paths[layout]), data.kind.batch
    source = HDF5Input(paths, batch_size=batch, features="image", label="label", shuffle=order, seed=SEED)
    return source, find_shards(source)


def training(data: Data, layout: str, order: str, threads: int) -> AbstractContextManager[OpenInput]:
    """Our endless training batches of one rank: has `.dataset`."""
    return open_training(*_source(data, layout, order), InputContext(0, 1, SEED), resources=ReadResources(threads))


@contextmanager
def _reading(data: Data, layout: str, order: str, threads: int) -> Iterator[Read]:
    """The same batches without TensorFlow: `read(step)` gives images `[B, ...]` and labels `[B]`, step after step."""
    with training_reader(*_source(data, layout, order), 0, 1, resources=ReadResources(threads)) as reader:
        yield reader.read


def rows_of(data: Data, layout: str, order: str, steps: int) -> list[np.ndarray]:
    """The row numbers that each of the first steps reads."""
    sampler = training_sampler(*_source(data, layout, order), 0, 1)
    return [sampler.rows_at(step) for step in range(steps)]


def _check(data: Data, layout: str, order: str, columns: Sequence[np.ndarray]) -> None:
    """RuntimeError where these are not the first batch."""
    rows, (images, labels) = rows_of(data, layout, order, 1)[0], columns
    if not (np.array_equal(images, data.images[rows]) and np.array_equal(labels, data.labels[rows])):
        raise RuntimeError(f"wrong rows were read ({data.kind.name}): nothing here is worth measuring")


def reader(data: Data, layout: str, order: str, threads: int, limit_secs: float, stack: ExitStack) -> Competitor:
    """Reader.read, step after step, with a reader that stays open."""
    read = stack.enter_context(_reading(data, layout, order, threads))
    steps = count()
    _check(data, layout, order, read(next(steps)))

    def deliver(_: int) -> int:
        read(next(steps))
        return data.kind.batch_bytes

    in_turn(deliver, data.steps, WHOLE_PASS_SECS)()
    return _drained(READER, deliver, data, limit_secs)


def dataset(data: Data, layout: str, order: str, threads: int, limit_secs: float, stack: ExitStack) -> Competitor:
    """Batches of our training pipeline, which stays open."""
    batches = stack.enter_context(training(data, layout, order, threads)).dataset

    def check(batch: Sequence[tf.Tensor]) -> None:
        _check(data, layout, order, [column.numpy() for column in batch])

    return _batches_of(DATASET, batches, data, limit_secs, stack, check)


def _batches_of(
    name: str, dataset: Any, data: Data, limit_secs: float, stack: ExitStack, check: Callable[[Any], None] | None = None
) -> Competitor:
    """Takes batches of an endless dataset, whose iterator stays open from run to run until `stack` closes.

    `check`: of the first batch; then a whole pass is made before anything counts.
    """
    batches: list[Iterator[Any]] = [iter(dataset)]
    stack.callback(batches.clear)
    first = next(batches[0])

    def deliver(_: int) -> int:
        next(batches[0])
        return data.kind.batch_bytes

    if check is not None:
        check(first)
        in_turn(deliver, data.steps, WHOLE_PASS_SECS)()
    return _drained(name, deliver, data, limit_secs)


def _drained(name: str, deliver: Callable[[int], int], data: Data, limit_secs: float) -> Competitor:
    """Calls `deliver` for a pass over the data.

    It is called for a moment before each run, too, until what was read ahead while others ran is gone: else batches
    would come for free, and the run would measure how large the buffers are.
    """
    return Competitor(
        name, in_turn(deliver, data.steps, limit_secs), in_turn(deliver, MANY_STEPS, min(DRAIN_SECS, limit_secs))
    )


def cold_reader(data: Data, layout: str, order: str, limit_secs: float) -> Competitor:
    """A new reader for each run: pages that a reader has mapped cannot be dropped."""
    opened, reads = ExitStack(), []

    def prepare() -> None:
        reads[:] = [opened.enter_context(_reading(data, layout, order, threads=1))]

    def run() -> int:
        def deliver(step: int) -> int:
            reads[0](step)
            return data.kind.batch_bytes

        return in_turn(deliver, data.steps, limit_secs)()

    return dropped(Competitor(READER, run, prepare, opened.close), data, layout)


def cold_dataset(data: Data, layout: str, order: str, threads: int, limit_secs: float) -> Competitor:
    """A pipeline opened anew for each run; its first batch is timed, too."""
    opened, datasets = ExitStack(), []

    def prepare() -> None:
        datasets[:] = [opened.enter_context(training(data, layout, order, threads)).dataset]

    def run() -> int:
        batches = iter(datasets[0])

        def deliver(_: int) -> int:
            next(batches)
            return data.kind.batch_bytes

        return in_turn(deliver, data.steps, limit_secs)()

    return dropped(Competitor(DATASET, run, prepare, opened.close), data, layout)


def dropped(competitor: Competitor, data: Data, layout: str) -> Competitor:
    """The same, with the files out of the page cache before each run."""

    def prepare() -> None:
        competitor.prepare()
        page_cache.drop(data.paths[layout])

    return replace(competitor, prepare=prepare)


def memcpy(data: Data, limit_secs: float) -> Competitor:
    """Batches in file order, copied from one large array into one batch buffer."""
    batch = data.kind.batch
    images, labels = _buffers(data)

    def deliver(step: int) -> int:
        rows = slice(step * batch, (step + 1) * batch)
        np.copyto(images, data.images[rows])
        np.copyto(labels, data.labels[rows])
        return data.kind.batch_bytes

    return Competitor(MEMCPY, in_turn(deliver, data.steps, limit_secs))


def take(data: Data, rows: Sequence[np.ndarray], limit_secs: float) -> Competitor:
    """Random rows of the large array, gathered into the batch buffer: what memory allows `global` at best."""
    images, labels = _buffers(data)

    def deliver(step: int) -> int:
        np.take(data.images, rows[step], axis=0, out=images, mode="clip")
        np.take(data.labels, rows[step], axis=0, out=labels, mode="clip")
        return data.kind.batch_bytes

    return Competitor("np.take", in_turn(deliver, data.steps, limit_secs))


def _buffers(data: Data) -> tuple[np.ndarray, np.ndarray]:
    return aligned_empty((data.kind.batch, *data.kind.shape), np.uint8), aligned_empty((data.kind.batch,), np.int64)


def h5py_slices(data: Data, layout: str, limit_secs: float, stack: ExitStack) -> Competitor:
    """`dataset[first:end]`, batch by batch."""
    columns = _columns(data, layout, stack)
    batch, shard_rows = data.kind.batch, data.shard_rows

    def deliver(step: int) -> int:
        shard, first = divmod(step * batch, shard_rows)
        return sum(dataset[first : first + batch].nbytes for dataset in columns[shard])

    return Competitor("h5py slices", in_turn(deliver, data.steps, limit_secs))


def h5py_fancy(data: Data, layout: str, rows: Sequence[np.ndarray], limit_secs: float, stack: ExitStack) -> Competitor:
    """`dataset[rows]` with the random rows of a batch, sorted, shard by shard."""
    columns = _columns(data, layout, stack)

    def deliver(step: int) -> int:
        shards, local = np.divmod(np.sort(rows[step]), data.shard_rows)
        return sum(dataset[local[shards == s]].nbytes for s in np.unique(shards) for dataset in columns[s])

    return Competitor("h5py fancy index", in_turn(deliver, data.steps, limit_secs))


def _columns(data: Data, layout: str, stack: ExitStack) -> list[tuple[h5py.Dataset, h5py.Dataset]]:
    files = [stack.enter_context(h5py.File(path)) for path in data.paths[layout]]
    return [(file["image"], file["label"]) for file in files]


def tfrecord(data: Data, shuffled: bool, limit_secs: float, stack: ExitStack) -> Competitor:
    """TFRecordDataset on one thread: shuffle buffer of 10 % of the rows, batch, parse_example, decode_raw."""
    import tensorflow as tf

    schema = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_example(serialized, schema)
        pixels = tf.io.decode_raw(found["image"], tf.uint8, fixed_length=data.kind.image_bytes)
        return tf.reshape(pixels, [-1, *data.kind.shape]), found["label"]

    dataset = tf.data.TFRecordDataset(data.tfrecords)
    if shuffled:
        dataset = dataset.shuffle(int(len(data.images) * SHUFFLE_SHARE), seed=1)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    batches = dataset.repeat().batch(data.kind.batch, drop_remainder=True).map(parse).with_options(options)
    return _batches_of(TFRECORD, batches, data, limit_secs, stack)


def generator(data: Data, by_row: bool, limit_secs: float, stack: ExitStack) -> Competitor:
    """`tf.data.Dataset.from_generator` over h5py, by batch as slices or row by row."""
    import tensorflow as tf

    columns = _columns(data, "contiguous", stack)
    rows = 1 if by_row else data.kind.batch

    def read() -> Iterator[Any]:
        for first in cycle(range(0, len(data.images), rows)):
            images, labels = columns[first // data.shard_rows]
            at = first % data.shard_rows
            yield (images[at], labels[at]) if by_row else (images[at : at + rows], labels[at : at + rows])

    lead = () if by_row else (rows,)
    signature = (tf.TensorSpec((*lead, *data.kind.shape), tf.uint8), tf.TensorSpec(lead, tf.int64))
    dataset = tf.data.Dataset.from_generator(read, output_signature=signature)
    if by_row:
        dataset = dataset.batch(data.kind.batch)
    return _batches_of(f"from_generator by {'row' if by_row else 'batch'}", dataset, data, limit_secs, stack)


def zlib_chunks(data: Data, limit_secs: float) -> Competitor:
    """zlib.decompress of the gzip shards' chunks, which lie in memory."""
    chunks: list[tuple[bytes, int]] = []
    for path in data.paths["gzip"]:
        with h5py.File(path) as file:
            for dataset in (file["label"], file["image"]):
                for i in range(dataset.id.get_num_chunks()):
                    at = dataset.id.get_chunk_info(i).chunk_offset
                    rows = min(dataset.chunks[0], len(dataset) - at[0])  # the last chunk is filled up
                    chunks.append((dataset.id.read_direct_chunk(at)[1], rows * dataset[0].nbytes))

    def deliver(i: int) -> int:
        compressed, size = chunks[i]
        zlib.decompress(compressed, bufsize=size)
        return size

    return Competitor(ZLIB, in_turn(deliver, len(chunks), limit_secs))


def file_reads(data: Data, layout: str, limit_secs: float) -> Competitor:
    """The shards' bytes in blocks of 1 MB, one after the other, into one buffer: what the disk gives."""
    blocks = [(p, at) for p in data.paths[layout] for at in range(0, Path(p).stat().st_size, FILE_BLOCK_BYTES)]
    buffer = aligned_empty((FILE_BLOCK_BYTES,), np.uint8)
    opened: dict[str, int] = {}

    def deliver(i: int) -> int:
        path, at = blocks[i]
        if path not in opened:
            opened[path] = os.open(path, os.O_RDONLY)
        return os.preadv(opened[path], [buffer], at)

    def close() -> None:
        for descriptor in opened.values():
            os.close(descriptor)
        opened.clear()

    return Competitor("file reads", in_turn(deliver, len(blocks), limit_secs), finish=close)
