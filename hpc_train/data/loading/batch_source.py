"""The batches of one rank as numpy arrays, step by step: order, reading and reading ahead put together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.data.hdf5.layout import ByEnds, Contiguous, InHeaps
from hpc_train.data.hdf5.local_copies import LocalCopies
from hpc_train.data.hdf5.reader import Reader, Rows
from hpc_train.data.hdf5.shards import ShardSet, record_of
from hpc_train.data.hdf5.stored import cache_bytes
from hpc_train.data.loading.prefetch import GroupReader
from hpc_train.data.loading.window_prefetch import WindowsAhead
from hpc_train.data.memory import available_bytes
from hpc_train.data.sampling.buckets import POOL_BATCHES, Buckets
from hpc_train.data.sampling.sampler import DataOrder, DataProgress, Sampler, evaluation_batches
from hpc_train.data.sampling.shuffle import derive_seed
from hpc_train.errors import UserError

GROUP_BYTES = 8 << 20
MAX_GROUP_STEPS = 64
"""So many batches are read at once as fit into 8 MiB, but not more than 64."""
AHEAD_BYTES = 256 << 20
"""Groups of batches that are read ahead take no more, unless one alone does; nor a quarter of the rank's memory."""

GIB = 1 << 30


@dataclass(frozen=True)
class ReadResources:
    """What a rank may use to read.

    Attributes:
        threads: Threads that read and decode.
        memory_bytes: Memory for decoded chunks and for batches read ahead; node_bytes: that the node has for all its
            ranks, and for the page cache, which they share. None: no limit.
        copies: Of shards, from which training reads once they are there.
    """

    threads: int = 1
    memory_bytes: int | None = None
    node_bytes: int | None = None
    copies: LocalCopies | None = None


MEMORY_PART = 0.5
"""Of the memory that is free when a job starts, what all ranks of a node may fill with decoded data."""


def share_of_node(cores: int, local_ranks: int) -> ReadResources:
    """A rank's share of its node, which `local_ranks` ranks use; `cores` are its own. Local."""
    memory = MEMORY_PART * available_bytes()
    return ReadResources(cores, int(memory / local_ranks), int(memory))


ONE_THREAD = ReadResources()
BEGINNING = DataProgress()


@dataclass(frozen=True)
class BatchReader:
    """Batches that can be read, in any order, though best in theirs. Threads may share it.

    Attributes:
        groups: Reads batches, several at once.
        seed_of: Of a step: a 64-bit seed for what is done at random to its batch.
        sampler: The order, and `order` what a checkpoint keeps of it; None for an evaluation.
        notes: What the user should know about reading this data.
    """

    groups: GroupReader
    seed_of: Callable[[int], int]
    sampler: Sampler | None = None
    order: DataOrder | None = None
    notes: tuple[str, ...] = ()


def training_sampler(
    source: HDF5Input, shards: ShardSet, rank: int, size: int, progress: DataProgress = BEGINNING
) -> Sampler:
    """The order in which `rank` reads `source`.

    Raises:
        UserError: Fewer rows than one global batch.
    """
    if shards.rows < source.batch_size * size:
        raise UserError(
            f"{source.shards[0]}: {shards.rows} rows are fewer than one global batch: batch_size {source.batch_size} "
            f"x {size} ranks = {source.batch_size * size}; take a smaller batch_size or fewer ranks"
        )
    blocks = shards.blocks if source.shuffle == "block" else None
    order = (source.seed, source.shuffle, progress, blocks)
    return Sampler(shards.rows, source.batch_size, rank, size, *order, bootstrap=source.bootstrap)


def order_of(source: HDF5Input, shards: ShardSet) -> DataOrder:
    """What a checkpoint keeps of the order in which `source` is read, to know it again."""
    digest = hashlib.sha256(json.dumps(record_of(shards)).encode())
    if source.shuffle == "block":
        digest.update(shards.blocks.starts.astype("<i8").tobytes())
    if source.bucket_by is not None:
        digest.update(json.dumps([source.bucket_by, source.batch_size]).encode())
    if source.bootstrap is not None:
        digest.update(json.dumps({"bootstrap": source.bootstrap}).encode())
    return DataOrder(source.seed, source.shuffle, shards.rows, digest.hexdigest()[:16])


@contextmanager
def training_reader(
    source: HDF5Input,
    shards: ShardSet,
    rank: int,
    size: int,
    progress: DataProgress = BEGINNING,
    resources: ReadResources = ONE_THREAD,
    once: bool = False,
) -> Iterator[BatchReader]:
    """Opens what `rank` trains on from `progress` on. Local.

    Args:
        once: For one rank, from the beginning: all rows once, of which the last batch may have fewer.

    Raises:
        UserError: Too few rows, or too little memory for the shuffle buffer.
    """
    with ExitStack() as opened:
        sampler = training_sampler(source, shards, rank, size, progress)
        if source.bucket_by is not None:
            sampler = replace(sampler, buckets=opened.enter_context(_buckets(source, shards, resources)))
        yield opened.enter_context(_reader_of(source, shards, sampler, resources, once))


@contextmanager
def _buckets(source: HDF5Input, shards: ShardSet, resources: ReadResources) -> Iterator[Buckets]:
    """What puts rows of like length together; it reads the lengths."""
    assert source.bucket_by is not None
    pool = POOL_BATCHES * source.batch_size
    with Reader(shards.lengths_of(source.bucket_by), resources.threads, pool, pool) as reader:

        def lengths(rows: np.ndarray) -> np.ndarray:
            found = reader.read(rows)[0]
            assert isinstance(found, np.ndarray)
            return found if found.ndim == 1 else found.reshape(len(found), -1).sum(axis=1)

        yield Buckets(lengths, source.batch_size)


@contextmanager
def _reader_of(
    source: HDF5Input, shards: ShardSet, sampler: Sampler, resources: ReadResources, once: bool
) -> Iterator[BatchReader]:
    progress = sampler.progress
    end = -(-sampler.rows // sampler.batch_size) if once else sampler.last_step(source.epochs)
    steps, ahead = _groups(source, shards, resources)
    plan = _plan(shards, sampler, resources, steps * (ahead + 1))
    with Reader(shards, resources.threads, plan.rows, plan.runs, plan.scattered) as reader:
        if resources.copies is not None:
            resources.copies.attach(reader)
        windows = None
        if source.shuffle == "block" and not plan.scattered:
            windows = WindowsAhead(reader, sampler, end, steps * (ahead + 1))

        def read(first: int, stop: int, rows: np.ndarray) -> list[Rows]:
            if windows:
                windows.prepare(first, stop)
            else:
                reader.expect(rows)
            return reader.read(rows)

        def rows_of(first: int, stop: int) -> np.ndarray:
            rows = sampler.rows_between(first, stop)
            return rows[: sampler.rows - first * sampler.batch_size] if once else rows

        with GroupReader(progress.step, end, steps, rows_of, read, ahead) as groups:
            yield BatchReader(groups, sampler.augmentation_seed, sampler, order_of(source, shards), plan.notes)


@contextmanager
def evaluation_reader(
    source: HDF5Input, shards: ShardSet, rank: int, size: int, steps: int | None, resources: ReadResources = ONE_THREAD
) -> Iterator[BatchReader]:
    """Opens `rank`'s part of an evaluation over `steps` batches of all ranks together, or over all rows. Local."""
    batches = evaluation_batches(shards.rows, source.batch_size, steps, rank, size)
    group, ahead = _groups(source, shards, resources)
    held = group * (ahead + 1)
    with Reader(shards, resources.threads, held * source.batch_size, held) as reader:

        def read(first: int, stop: int, rows: np.ndarray) -> list[Rows]:
            reader.expect(rows)
            return reader.read(rows)

        def seed_of(k: int) -> int:
            return derive_seed(source.seed, 0, batches[k][0] // source.batch_size, 0)

        def rows_of(first: int, stop: int) -> np.ndarray:
            return np.concatenate([np.arange(*batch) for batch in batches[first:stop]])

        with GroupReader(0, len(batches), group, rows_of, read, ahead) as groups:
            yield BatchReader(groups, seed_of)


def _groups(source: HDF5Input, shards: ShardSet, resources: ReadResources) -> tuple[int, int]:
    """Steps of a group, and how many groups are read ahead."""
    batch_bytes = max(1, source.batch_size * shards.row_bytes)
    steps = min(MAX_GROUP_STEPS, max(1, GROUP_BYTES // batch_bytes))
    limit = AHEAD_BYTES if resources.memory_bytes is None else min(AHEAD_BYTES, resources.memory_bytes // 4)
    return steps, max(1, min(resources.threads, limit // (steps * batch_bytes)))


@dataclass
class _Plan:
    """What is kept decoded, as rows in runs; whether rows are read at random from more data than memory holds."""

    rows: int
    runs: int
    scattered: bool = False
    notes: tuple[str, ...] = ()


def _plan(shards: ShardSet, sampler: Sampler, resources: ReadResources, held: int) -> _Plan:
    """For so many batches held at the same time."""
    limit = resources.memory_bytes
    if sampler.shuffle == "none":
        return _Plan(held * sampler.batch_size, held)
    if sampler.shuffle == "global":
        large = resources.node_bytes is not None and sum(shards.file_bytes) > resources.node_bytes
        whole = cache_bytes(shards, shards.rows, len(shards.paths))
        if limit is None or whole <= limit:
            return _Plan(shards.rows, len(shards.paths), large)
        note = (
            f"the shards are compressed or chunked and take {whole / GIB:.1f} GiB when "
            f"decoded, more than the {limit / GIB:.1f} GiB this rank may use: shuffle 'global' decodes a chunk for "
            "each row. Take shuffle: block, or shards without compression (hpc-train shard)"
        )
        rows = held * sampler.batch_size
        return _Plan(rows, rows, large, (note,))
    window = sampler.window_rows
    runs = 2 * len(sampler.window(sampler.place_of(sampler.progress.step)).rows) + 4
    rows = 2 * window + held * sampler.batch_size
    needed = cache_bytes(shards, rows, runs)
    if limit is not None and needed > limit:
        raise UserError(
            f"{shards.paths[0]}: shuffle 'block' keeps two windows of a tenth of a rank's share decoded, here "
            f"{needed / GIB:.1f} GiB, but this rank may use {limit / GIB:.1f} GiB; take more ranks or nodes, or shards "
            "without compression (hpc-train shard), which need no memory of their own"
        )
    if limit is not None and 2 * window * _contiguous_row_bytes(shards) > limit:
        note = (
            f"two windows of shuffle 'block' ({2 * window * _contiguous_row_bytes(shards) / GIB:.1f} GiB) do not fit "
            "into the memory that is left for the page cache: rows are read at random. Take more ranks or nodes"
        )
        return _Plan(rows, runs, True, (note,))
    return _Plan(rows, runs)


def _contiguous_row_bytes(shards: ShardSet) -> int:
    each = zip(shards.columns, shards.layouts[0], strict=True)
    return sum(column.row_bytes for column, layout in each if isinstance(layout, Contiguous | ByEnds | InHeaps))
