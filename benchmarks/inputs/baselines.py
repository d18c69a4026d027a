"""What ours is compared with: copies in memory, h5py, TFRecord, from_generator, bare zlib, bare file reads."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from support.timing import Competitor, in_turn

from inputs.datasets import batches_of
from inputs.files import Data
from inputs.rows import aligned_empty

if TYPE_CHECKING:
    import tensorflow as tf

SHUFFLE_SHARE = 0.1
FILE_BLOCK_BYTES = 1 << 20


def memcpy(data: Data, limit_secs: float) -> Competitor:
    """Batches in file order, copied from one large array into one batch buffer."""
    batch = data.kind.batch
    images, labels = _buffers(data)

    def deliver(step: int) -> int:
        rows = slice(step * batch, (step + 1) * batch)
        np.copyto(images, data.images[rows])
        np.copyto(labels, data.labels[rows])
        return data.kind.batch_bytes

    return Competitor("memcpy", in_turn(deliver, data.steps, limit_secs))


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
    return batches_of("TFRecord", tfrecord_dataset(data, shuffled), data, limit_secs, stack)


def tfrecord_dataset(data: Data, shuffled: bool) -> tf.data.Dataset:
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
    return dataset.repeat().batch(data.kind.batch, drop_remainder=True).map(parse).with_options(options)


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
    return batches_of(f"from_generator by {'row' if by_row else 'batch'}", dataset, data, limit_secs, stack)


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

    return Competitor("zlib", in_turn(deliver, len(chunks), limit_secs))


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
