"""The values that labels take, looked at before training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_train.data.reader import Reader
from hpc_train.data.shards import ShardSet
from hpc_train.errors import UserError

PIECE_ROWS = 1 << 18
MAX_INT64 = 2**63 - 1


@dataclass(frozen=True)
class LabelRange:
    """Smallest and largest value of one label dataset in one shard; both NaN where it holds a NaN."""

    path: str
    dataset: str
    low: float
    high: float


def label_ranges(shards: ShardSet, rank: int, size: int, threads: int) -> list[LabelRange]:
    """Reads the labels that are one number a row, in this rank's part of the shards. Local.

    Raises:
        UserError: An unsigned label does not fit into int64, which is what losses compute with.
        OSError: A shard cannot be read.
    """
    found: list[LabelRange] = []
    for number, column in enumerate(shards.labels):
        if column.row_bytes > 16 or int(np.prod(column.shape)) != 1 or column.dtype.startswith(("bool", "complex")):
            continue
        only = shards.only(len(shards.features) + number)
        chunk = 2 * PIECE_ROWS
        with Reader(only, threads, chunk, 2) as reader:
            for shard in range(rank, len(shards.paths), size):
                first, end = int(shards.starts[shard]), int(shards.starts[shard]) + shards.shard_rows[shard]
                pieces = (np.arange(k, min(k + PIECE_ROWS, end)) for k in range(first, end, PIECE_ROWS))
                bounds = np.array([(v.min(), v.max()) for (v,) in map(reader.read, pieces)])
                low, high = bounds[:, 0].min(), bounds[:, 1].max()
                if high > MAX_INT64 and column.dtype == "uint64":
                    raise UserError(
                        f"{shards.paths[shard]}: dataset {column.name!r} has the value {high}, but losses take labels "
                        f"as int64, whose largest is {MAX_INT64}"
                    )
                found.append(LabelRange(shards.paths[shard], column.name, float(low), float(high)))
    return found


def check_classes(ranges: list[LabelRange], dataset: str, classes: int, ignored: int | None) -> None:
    """Whether labels `dataset` are the numbers of `classes` classes, as a sparse cross-entropy takes them.

    Args:
        ignored: A value that the loss leaves out.

    Raises:
        UserError: A shard has a label outside 0…classes-1; on a GPU that gives a loss of NaN, or rubbish.
    """
    for found in ranges:
        if found.dataset == dataset:
            for value in (found.low, found.high):
                if not 0 <= value <= classes - 1 and value != ignored:
                    raise UserError(
                        f"{found.path}: dataset {dataset!r} has the value {value:.10g}, but the model's output has "
                        f"{classes} classes, whose labels are 0 to {classes - 1}"
                    )
