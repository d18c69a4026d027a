"""Who delivers rows: hpc_train; and copies, h5py, TFRecord, from_generator, bare zlib and bare file reads."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from support import page_cache
from support.timing import Competitor, in_turn

from hpc_train import HDF5Input
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.batch_source import BatchReader, ReadResources, training_reader, training_sampler
from hpc_train.data.loading.tf_dataset import InputContext, OpenInput, open_training
from inputs.data import Data, aligned_empty

if TYPE_CHECKING:
    import tensorflow as tf

READER, DATASET, MEMCPY, TFRECORD, ZLIB = "reader", "tf.data", "memcpy", "TFRecord", "zlib"
TAKE, SLICES, FANCY, FILE_READS = "np.take", "h5py slices", "h5py fancy index", "file reads"
GENERATOR_BATCH, GENERATOR_ROW = "from_generator by batch", "from_generator by row"
SEED = 1
SHUFFLE_SHARE = 0.1
FILE_BLOCK_BYTES = 1 << 20
DRAIN_SECS = 0.05
MANY_STEPS = 1 << 30
WHOLE_PASS_SECS = 5.0
Take = Callable[[int], object]
"""Takes the batch of a step; it returns when the batch is there."""


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        rows: Name of the row kind.
        way: Who delivers the rows: READER and DATASET are ours, the rest are what they are compared with.
        threads: Of our reader; 0 where that does not apply.
        cores: "all" or "one". beside: In which other turns the case runs once more.
    """

    rows: str
    layout: str
    order: str
    way: str
    threads: int = 0
    cores: str = "all"
    cache: str = "warm"
    beside: str = ""

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}" if self.threads else ""
        cores = "on one core" if self.cores == "one" else ""
        cache = "cold" if self.cache == "cold" else ""
        words = [self.order, self.layout, self.rows, self.way, threads, cores, cache, self.beside]
        return " ".join(filter(None, words))

    @property
    def is_ours(self) -> bool:
        return self.way in (READER, DATASET)


@dataclass(frozen=True)
class Setup:
    """A case with its data; what it opens is open until `stack` closes. Runs end after a pass, or `limit_secs`."""

    case: Case
    data: Data
    limit_secs: float
    stack: ExitStack

    def competitor(
        self, take: Take, count: int | None = None, nbytes: Callable[[int], int] | None = None
    ) -> Competitor:
        """Calls `take` for all batches of a pass; or for `count` other things that have `nbytes` each."""
        run = in_turn(self._deliver(take, nbytes), count or self.data.steps, self.limit_secs)
        return Competitor(str(self.case), run)

    def drained(self, take: Take) -> Competitor:
        """The same, after what was read ahead while others ran has been taken.

        Else batches would come for free, and the run would measure how large the buffers are.
        """
        prepare = in_turn(self._deliver(take), MANY_STEPS, min(DRAIN_SECS, self.limit_secs))
        return replace(self.competitor(take), prepare=prepare)

    def _deliver(self, take: Take, nbytes: Callable[[int], int] | None = None) -> Callable[[int], int]:
        def deliver(step: int) -> int:
            take(step)
            return nbytes(step) if nbytes else self.data.kind.batch_bytes

        return deliver

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """For a batch of images, and of labels."""
        kind = self.data.kind
        return aligned_empty((kind.batch, *kind.shape), np.uint8), aligned_empty((kind.batch,), np.int64)

    def columns(self) -> list[tuple[h5py.Dataset, h5py.Dataset]]:
        """Images and labels of each shard."""
        files = [self.stack.enter_context(h5py.File(path)) for path in self.data.paths[self.case.layout]]
        return [(file["image"], file["label"]) for file in files]

    def source(self) -> tuple[HDF5Input, ShardSet]:
        """As a job has it."""
        paths, batch = tuple(self.data.paths[self.case.layout]), self.data.kind.batch
        columns = {"features": "image", "label": "label"}
        source = HDF5Input(paths, batch_size=batch, **columns, shuffle=self.case.order, seed=SEED)
        return source, find_shards(source)

    def rows(self, steps: int) -> list[np.ndarray]:
        """The row numbers that each of the first steps reads."""
        sampler = training_sampler(*self.source(), 0, 1)
        return [sampler.rows_at(step) for step in range(steps)]

    def training(self) -> AbstractContextManager[OpenInput]:
        """Our endless training batches of one rank: has `.dataset`."""
        return open_training(*self.source(), InputContext(0, 1, SEED), resources=ReadResources(self.case.threads))

    def open_ours(self, opened: ExitStack) -> Callable[[], Take]:
        """Opens our reader, or our dataset; what it returns begins to take batches, step after step."""
        if self.case.way == DATASET:
            dataset = opened.enter_context(self.training()).dataset

            def begin() -> Take:
                batches = iter(dataset)
                return lambda _: next(batches)

            return begin
        resources = ReadResources(self.case.threads)
        reader = opened.enter_context(training_reader(*self.source(), 0, 1, resources=resources))
        batches = self._batches(reader)
        return lambda: lambda _: next(batches)

    def _batches(self, reader: BatchReader) -> Iterator[list[np.ndarray]]:
        batch = self.data.kind.batch
        for number in count():
            arrays = reader.groups.group(number)
            for start in range(0, reader.groups.steps * batch, batch):
                yield [array[start : start + batch] for array in arrays]


def ours(setup: Setup) -> Competitor:
    """Our reader without TensorFlow, or the training pipeline, which stays open."""
    take = setup.open_ours(setup.stack)()
    images, labels = (np.asarray(column) for column in take(0))
    rows, data = setup.rows(1)[0], setup.data
    if not (np.array_equal(images, data.images[rows]) and np.array_equal(labels, data.labels[rows])):
        raise RuntimeError(f"wrong rows were read ({data.kind.name}): nothing here is worth measuring")
    replace(setup, limit_secs=WHOLE_PASS_SECS).competitor(take).run()
    return setup.drained(take)


def ours_cold(setup: Setup) -> Competitor:
    """Opened anew for each run, for pages that a reader has mapped cannot be dropped; the first batch is timed, too."""
    opened, begins = ExitStack(), []

    def prepare() -> None:
        begins[:] = [setup.open_ours(opened)]

    def run() -> int | None:
        return setup.competitor(begins[0]()).run()

    return Competitor(str(setup.case), run, prepare, opened.close)


def dropped(competitor: Competitor, paths: Sequence[str]) -> Competitor:
    """The same, with the files out of the page cache before each run."""

    def prepare() -> None:
        competitor.prepare()
        page_cache.drop(paths)

    return replace(competitor, prepare=prepare)


def memcpy(setup: Setup) -> Competitor:
    """Batches in file order, copied from one large array into one batch buffer."""
    data, (images, labels) = setup.data, setup.buffers()
    batch = data.kind.batch

    def take(step: int) -> None:
        rows = slice(step * batch, (step + 1) * batch)
        np.copyto(images, data.images[rows])
        np.copyto(labels, data.labels[rows])

    return setup.competitor(take)


def take_rows(setup: Setup) -> Competitor:
    """Random rows of the large array, gathered into the batch buffer: what memory allows `global` at best."""
    data, (images, labels) = setup.data, setup.buffers()
    rows = setup.rows(data.steps)

    def take(step: int) -> None:
        np.take(data.images, rows[step], axis=0, out=images, mode="clip")
        np.take(data.labels, rows[step], axis=0, out=labels, mode="clip")

    return setup.competitor(take)


def h5py_slices(setup: Setup) -> Competitor:
    """`dataset[first:end]`, batch by batch."""
    columns, batch, shard_rows = setup.columns(), setup.data.kind.batch, setup.data.shard_rows

    def take(step: int) -> None:
        shard, first = divmod(step * batch, shard_rows)
        for dataset in columns[shard]:
            dataset[first : first + batch]

    return setup.competitor(take)


def h5py_fancy(setup: Setup) -> Competitor:
    """`dataset[rows]` with the random rows of a batch, sorted, shard by shard."""
    columns, rows, shard_rows = setup.columns(), setup.rows(setup.data.steps), setup.data.shard_rows

    def take(step: int) -> None:
        shards, local = np.divmod(np.sort(rows[step]), shard_rows)
        for shard in np.unique(shards):
            for dataset in columns[shard]:
                dataset[local[shards == shard]]

    return setup.competitor(take)


def _batches_of(setup: Setup, dataset: Any) -> Competitor:
    """Takes batches of an endless dataset, whose iterator stays open from run to run until the setup's stack closes."""
    batches: list[Iterator[Any]] = [iter(dataset)]
    setup.stack.callback(batches.clear)
    next(batches[0])
    return setup.drained(lambda _: next(batches[0]))


def tfrecord(setup: Setup) -> Competitor:
    """TFRecordDataset on one thread: shuffle buffer of 10 % of the rows, batch, parse_example, decode_raw."""
    import tensorflow as tf

    data = setup.data
    schema = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_example(serialized, schema)
        pixels = tf.io.decode_raw(found["image"], tf.uint8, fixed_length=data.kind.image_bytes)
        return tf.reshape(pixels, [-1, *data.kind.shape]), found["label"]

    dataset = tf.data.TFRecordDataset(data.tfrecords)
    if setup.case.order != "none":
        dataset = dataset.shuffle(int(len(data.images) * SHUFFLE_SHARE), seed=1)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    batches = dataset.repeat().batch(data.kind.batch, drop_remainder=True).map(parse).with_options(options)
    return _batches_of(setup, batches)


def generator(setup: Setup) -> Competitor:
    """`tf.data.Dataset.from_generator` over h5py, by batch as slices or row by row, which is five times as slow."""
    import tensorflow as tf

    data, columns, by_row = setup.data, setup.columns(), setup.case.way == GENERATOR_ROW
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
        return _batches_of(replace(setup, limit_secs=setup.limit_secs / 5), dataset.batch(data.kind.batch))
    return _batches_of(setup, dataset)


def zlib_chunks(setup: Setup) -> Competitor:
    """zlib.decompress of the gzip shards' chunks, which lie in memory."""
    chunks: list[tuple[bytes, int]] = []
    for columns in setup.columns():
        for dataset in reversed(columns):
            for i in range(dataset.id.get_num_chunks()):
                at = dataset.id.get_chunk_info(i).chunk_offset
                rows = min(dataset.chunks[0], len(dataset) - at[0])  # the last chunk is filled up
                chunks.append((dataset.id.read_direct_chunk(at)[1], rows * dataset[0].nbytes))

    def take(i: int) -> None:
        compressed, size = chunks[i]
        zlib.decompress(compressed, bufsize=size)

    return setup.competitor(take, len(chunks), lambda i: chunks[i][1])


def file_reads(setup: Setup) -> Competitor:
    """The shards' bytes in blocks of 1 MB, one after the other, into one buffer: what the disk gives."""
    sizes = {path: Path(path).stat().st_size for path in setup.data.paths[setup.case.layout]}
    blocks = [(path, at) for path, size in sizes.items() for at in range(0, size, FILE_BLOCK_BYTES)]
    buffer = aligned_empty((FILE_BLOCK_BYTES,), np.uint8)
    opened: dict[str, int] = {}

    def take(i: int) -> None:
        path, at = blocks[i]
        if path not in opened:
            opened[path] = os.open(path, os.O_RDONLY)
        os.preadv(opened[path], [buffer], at)

    def close() -> None:
        for descriptor in opened.values():
            os.close(descriptor)
        opened.clear()

    read = setup.competitor(take, len(blocks), lambda i: min(FILE_BLOCK_BYTES, sizes[blocks[i][0]] - blocks[i][1]))
    return replace(read, finish=close)


CONTESTANTS: Mapping[str, Callable[[Setup], Competitor]] = {
    READER: ours,
    DATASET: ours,
    MEMCPY: memcpy,
    TAKE: take_rows,
    SLICES: h5py_slices,
    FANCY: h5py_fancy,
    TFRECORD: tfrecord,
    GENERATOR_BATCH: generator,
    GENERATOR_ROW: generator,
    ZLIB: zlib_chunks,
    FILE_READS: file_reads,
}
