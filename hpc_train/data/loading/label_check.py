"""The values that labels take, looked at before training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shard_schema import Classes, kept_classes
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.ragged import Ragged
from hpc_train.errors import UserError
from hpc_train.text import NAMED, listed, visible

PIECE_ROWS = 1 << 18


@dataclass(frozen=True)
class LabelRange:
    """Of one label dataset in one shard: its smallest and largest value, and one that is no whole number."""

    path: str
    dataset: str
    low: float
    high: float
    broken: float | None


@dataclass(frozen=True)
class UnknownText:
    """A label that is a text, and none of the classes."""

    path: str
    row: int
    text: str


def label_ranges(
    shards: ShardSet, datasets: Mapping[str, int | None], rank: int, size: int, threads: int
) -> list[LabelRange]:
    """Reads those labels that are one number a row, in this rank's part of the shards. Local.

    Args:
        datasets: Which labels, and the value that each one's loss leaves out.

    Raises:
        OSError: A shard cannot be read.
    """
    found: list[LabelRange] = []
    for number, column in enumerate(shards.labels):
        if column.name not in datasets or math.prod(column.shape) != 1 or column.kind == "ragged":
            continue
        if column.dtype.startswith(("bool", "complex", "S")):
            continue
        ignored = datasets[column.name]
        only = shards.only(len(shards.features) + number)
        with Reader(only, threads, 2 * PIECE_ROWS, 2) as reader:
            for shard in range(rank, len(shards.paths), size):
                first, end = int(shards.starts[shard]), int(shards.starts[shard]) + shards.shard_rows[shard]
                low, high, broken = math.inf, -math.inf, None
                for start in range(first, end, PIECE_ROWS):
                    values = reader.read(np.arange(start, min(start + PIECE_ROWS, end)))[0]
                    assert isinstance(values, np.ndarray)
                    values = values if ignored is None else values[values != ignored]
                    if values.size:
                        low, high = min(low, float(values.min())), max(high, float(values.max()))
                        fractions = values[values != np.floor(values)] if values.dtype.kind == "f" else values[:0]
                        broken = float(fractions.flat[0]) if fractions.size else broken
                found.append(LabelRange(shards.paths[shard], column.name, low, high, broken))
    return found


def unknown_texts(
    shards: ShardSet, dataset: str, vocabulary: Sequence[str], rank: int, size: int, threads: int
) -> list[UnknownText]:
    """Of labels that are texts the first in each shard of this rank that `vocabulary` has not. Local.

    Raises:
        OSError: A shard cannot be read.
    """
    found = []
    known = {text.encode() for text in vocabulary}
    (number,) = [number for number, column in enumerate(shards.labels) if column.name == dataset]
    only = shards.only(len(shards.features) + number)
    with Reader(only, threads, 2 * PIECE_ROWS, 2) as reader:
        for shard in range(rank, len(shards.paths), size):
            first, end = int(shards.starts[shard]), int(shards.starts[shard]) + shards.shard_rows[shard]
            for start in range(first, end, PIECE_ROWS):
                rows = reader.read(np.arange(start, min(start + PIECE_ROWS, end)))[0]
                texts = (rows.texts() if isinstance(rows, Ragged) else rows).reshape(-1).tolist()
                if others := [(place, text) for place, text in enumerate(texts) if text not in known]:
                    place, text = others[0]
                    found.append(UnknownText(shards.paths[shard], start - first + place, text.decode()))
                    break
    return found


def check_texts(unknown: Sequence[UnknownText], dataset: str, vocabulary: Sequence[str]) -> None:
    """UserError where there is an `unknown` label of texts."""
    for found in unknown[:1]:
        raise UserError(
            f"{found.path}: dataset {dataset!r} has the text {visible(repr(found.text))} in row {found.row:,}, which "
            f"label_vocabulary has not; it has {visible(listed(map(repr, vocabulary)))}"
        )


def check_kept_classes(shards: ShardSet, classes: Classes) -> None:
    """Compares the `classes` of a schema, in their order, with those that shards name for their only label. Local.

    Shards name them that `hpc-train shard --schema` has written; others are taken as they are.

    Raises:
        UserError: They are others, or in another order: numbers in the shards stand for other classes.
        OSError: A shard cannot be read.
    """
    if len(shards.labels) != 1:
        return
    dataset = shards.labels[0].name
    for path in shards.paths:
        kept = kept_classes(path, dataset)
        if kept and kept != classes:
            there, here = (visible(listed(map(repr, each), most=NAMED)) for each in (kept, classes))
            number = next((n for n, (a, b) in enumerate(zip(kept, classes, strict=False)) if a != b), None)
            first = "" if number is None else visible(f"; {number} is {kept[number]!r} there, {classes[number]!r} here")
            raise UserError(
                f"{path}: labels {dataset!r} are numbers of the classes {there}, but the schema has {here}{first}; put "
                "the label's vocabulary in the order of the shards, or write the shards again with this schema"
            )


def check_classes(ranges: list[LabelRange], dataset: str, classes: int) -> None:
    """Whether labels `dataset` are the numbers of `classes` classes, as a sparse cross-entropy takes them.

    Raises:
        UserError: A shard has another label; on a GPU that gives a loss of NaN, or rubbish.
    """
    for found in ranges:
        if found.dataset == dataset:
            ends = (found.low, found.high) if found.low <= found.high else ()
            wrong = [value for value in ends if not 0 <= value <= classes - 1]
            wrong += [found.broken] if found.broken is not None else []
            if wrong:
                raise UserError(
                    f"{found.path}: dataset {dataset!r} has the value {wrong[0]:.10g}, but the model's output has "
                    f"{classes} classes, whose labels are 0 to {classes - 1}"
                )
