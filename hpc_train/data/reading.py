"""The batches of one rank as numpy arrays, step by step: order, reading and reading ahead put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hpc_train.config.specs import HDF5Input
from hpc_train.data.layout import Chunked, Contiguous
from hpc_train.data.readahead import BatchesAhead, WindowsAhead
from hpc_train.data.reader import Reader, cache_bytes
from hpc_train.data.sampler import DataProgress, Sampler, evaluation_batches
from hpc_train.data.shards import ShardSet
from hpc_train.data.shuffle import derive_seed
from hpc_train.errors import UserError

AHEAD_BANDS = 2
"""Chunks that each thread decodes ahead of their use."""

GIB = 1 << 30


@dataclass(frozen=True)
class Means:
    """What a rank may use to read: `threads`, and `memory_bytes` for decoded chunks (None: no limit)."""

    threads: int = 1
    memory_bytes: int | None = None


ONE_THREAD = Means()
BEGINNING = DataProgress()


@dataclass(frozen=True)
class Reading:
    """Batches that can be read, in any order, though best in theirs. Threads may share it.

    Attributes:
        read: Of a step: one array `[B, ...]` a column (see Reader.read).
        seed_of: Of a step: a 64-bit seed for what is done at random to its batch.
        first, end: The steps there are; `end` None: there is no end.
        sampler: The order; None for an evaluation.
        notes: What the user should know about reading this data.
    """

    read: Callable[[int], list[np.ndarray]]
    seed_of: Callable[[int], int]
    first: int
    end: int | None
    sampler: Sampler | None = None
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
    return Sampler(shards.rows, source.batch_size, rank, size, source.seed, source.shuffle, progress, blocks)


@contextmanager
def training_reading(
    source: HDF5Input,
    shards: ShardSet,
    rank: int,
    size: int,
    progress: DataProgress = BEGINNING,
    means: Means = ONE_THREAD,
) -> Iterator[Reading]:
    """Opens what `rank` trains on from `progress` on. Local.

    Raises:
        UserError: Too few rows, or too little memory for the shuffle buffer.
    """
    sampler = training_sampler(source, shards, rank, size, progress)
    end = sampler.last_step(source.epochs)
    plan = _plan(shards, sampler, means)
    with Reader(shards, means.threads, plan.rows, plan.runs, plan.scattered) as reader:
        ahead: WindowsAhead | BatchesAhead | None = None
        if source.shuffle == "block" and plan.ahead:
            ahead = WindowsAhead(reader, sampler, end, means.threads + 1)
        elif plan.ahead:
            ahead = BatchesAhead(reader, sampler.rows_at, plan.ahead, end)

        def read(step: int) -> list[np.ndarray]:
            if ahead:
                ahead.prepare(step)
            return reader.read(sampler.rows_at(step))

        yield Reading(read, sampler.augmentation_seed, progress.step, end, sampler, tuple(plan.notes))


@contextmanager
def evaluation_reading(
    source: HDF5Input, shards: ShardSet, rank: int, size: int, steps: int | None, means: Means = ONE_THREAD
) -> Iterator[Reading]:
    """Opens `rank`'s part of an evaluation over `steps` batches of all ranks together, or over all rows. Local."""
    batches = evaluation_batches(shards.rows, source.batch_size, steps, rank, size)
    depth = _batches_ahead(shards, source.batch_size * size, means.threads)
    held = depth + means.threads + 2
    with Reader(shards, means.threads, held * source.batch_size, held) as reader:
        ahead = BatchesAhead(reader, lambda k: np.arange(*batches[k]), depth, len(batches))

        def read(k: int) -> list[np.ndarray]:
            ahead.prepare(k)
            return reader.read(np.arange(*batches[k]))

        def seed_of(k: int) -> int:
            return derive_seed(source.seed, 0, batches[k][0] // source.batch_size, 0)

        yield Reading(read, seed_of, 0, len(batches))


@dataclass
class _Plan:
    """What is kept decoded, as rows in runs; how far to read ahead; whether memory holds less than is asked for."""

    rows: int
    runs: int
    ahead: int
    scattered: bool = False
    notes: list[str] = field(default_factory=list)


def _plan(shards: ShardSet, sampler: Sampler, means: Means) -> _Plan:
    limit = means.memory_bytes
    depth = _batches_ahead(shards, sampler.batch_size * sampler.size, means.threads)
    held = depth + means.threads + 2
    if sampler.shuffle == "none":
        return _Plan(held * sampler.batch_size, held, depth)
    if sampler.shuffle == "global":
        large = limit is not None and sum(shards.file_bytes) > limit
        if limit is None or cache_bytes(shards, shards.rows, 0) <= limit:
            return _Plan(shards.rows, 0, depth, large)
        note = (
            f"the shards are compressed or chunked and take {cache_bytes(shards, shards.rows, 0) / GIB:.1f} GiB when "
            f"decoded, more than the {limit / GIB:.1f} GiB this rank may use: shuffle 'global' decodes a chunk for "
            "each row. Take shuffle: block, or shards without compression (hpc-train shard)"
        )
        rows = held * sampler.batch_size
        return _Plan(rows, rows, depth, large, [note])
    window = sampler.window_rows
    runs = 2 * len(sampler.window_at(sampler.progress.step).rows) + 4
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
        return _Plan(rows, runs, 0, True, [note])
    return _Plan(rows, runs, 1)


def _contiguous_row_bytes(shards: ShardSet) -> int:
    contiguous = (isinstance(layout, Contiguous) for layout in shards.layouts[0])
    return sum(column.row_bytes for column, is_so in zip(shards.columns, contiguous, strict=True) if is_so)


def _batches_ahead(shards: ShardSet, rows: int, threads: int) -> int:
    """Steps of `rows` rows after which each thread has chunks to decode."""
    chunks = (layout.chunk[0] for layouts in shards.layouts for layout in layouts if isinstance(layout, Chunked))
    return min(64, max(1, -(-AHEAD_BANDS * threads * max(chunks, default=1) // rows)))
