"""Files of predictions: one dataset for each output, the rows in the order of the shard that they were made from.

    attribute `hpc_train_predictions`    JSON: what they were made of (see Origin) and which rows, `[first, end]`

While a shard is predicted, pieces of it lie beside its file as hidden `.part` files of the same kind.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.types import padding_of
from hpc_train.data.hdf5.columns import Column
from hpc_train.data.hdf5.data_file import HDF5_ERRORS
from hpc_train.data.hdf5.file_table import describe_column
from hpc_train.data.hdf5.input_file import InputFile
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import ShardSet, find_shards, matches
from hpc_train.data.ragged import Ragged
from hpc_train.data.sampling.work_split import Piece, part_path
from hpc_train.data.sources.spool import writing
from hpc_train.data.sources.table import Field, piece_rows
from hpc_train.data.writing.shard_file import new_file
from hpc_train.errors import UserError
from hpc_train.folders import make_folder, remove

ATTRIBUTE = "hpc_train_predictions"


@dataclass(frozen=True)
class Origin:
    """What predictions were made of: two with the same origin are the same.

    Attributes:
        export, step: The export's path, and the global step of its model.
        export_digest: Of its graph and variables.
        shard, shard_bytes, shard_time_ns: The file that was read, its size and when it was written.
        inputs: The dataset that each input was read from.
        pad: What rows of different lengths were padded with, by dataset, as in a job's `pad`.
        batch_size: Rows that were predicted together.
    """

    export: str
    step: int | None
    export_digest: str
    shard: str
    shard_bytes: int
    shard_time_ns: int
    inputs: dict[str, str]
    pad: dict[str, Any]
    batch_size: int


@dataclass(frozen=True)
class InputSpec:
    """What an input takes: numpy's name of its dtype, and the shape of a row; None means any number, or shape."""

    dtype: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        shape = "" if self.shape is None else "".join(f", {'any' if n is None else n}" for n in self.shape)
        return f"{'texts' if self.dtype == 'object' else self.dtype} [rows{shape}]"


def shards_to_predict(patterns: Sequence[str], wanted: Mapping[str, InputSpec], pad: Mapping[str, Any]) -> ShardSet:
    """The shards that `patterns` name, with the datasets of `wanted` as features.

    Args:
        pad: What rows of numbers are padded with where they have different lengths, by dataset, as in a job's `pad`.

    Raises:
        UserError: No such file, or one that cannot be read; else with every dataset of every file that is missing, or
            that its input does not take.
    """
    paths = list(dict.fromkeys(str(path) for pattern in patterns for path in matches(pattern)))
    problems = [text for path in paths for text in _mistakes(path, wanted, pad)]
    if problems:
        shown = problems[:100]
        raise UserError("\n".join([*shown, *([f"and {len(problems) - 100} more"] if len(problems) > 100 else [])]))
    source = HDF5Input(tuple(patterns), features=tuple(wanted), label=())
    known = {name: padding for name, padding in pad.items() if name in wanted}
    return find_shards(replace(source, pad=_needed(known, paths[0]) if paths else {}))


def _needed(pad: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Of `pad` that of datasets whose rows have different lengths in this file."""
    needed = {}
    with suppress(*HDF5_ERRORS), InputFile(path) as file:  # find_shards reports it
        for name, padding in pad.items():
            found = describe_column(file, name)
            if found is not None and found.column is not None and found.column.takes_padding:
                needed[name] = padding
    return needed


def _mistakes(path: str, wanted: Mapping[str, InputSpec], pad: Mapping[str, Any]) -> list[str]:
    problems = []
    try:
        with InputFile(path) as file:
            for name, input_ in wanted.items():
                found = describe_column(file, name)
                if found is None:
                    has = ", ".join(file.names) or "none"
                    problems.append(f"{path}: has no dataset {name!r}, which the export takes; it has {has}")
                elif found.column is not None and not _takes(input_, found.column, pad):
                    way = f"; give --pad {name}={_example(input_)}" if found.column.takes_padding else ""
                    problems.append(f"{path}: dataset {name!r} is {found.column}, but the export takes {input_}{way}")
    except HDF5_ERRORS:
        return []  # find_shards reports it
    return problems


def _example(wanted: InputSpec) -> str:
    """What rows for this input may be padded with."""
    length = wanted.shape[0] if wanted.shape else None
    return "0" if length is None else f"0:{length}"


def _takes(wanted: InputSpec, column: Column, pad: Mapping[str, Any]) -> bool:
    """Whether the input takes the column as it is, padded, or in a wider dtype that holds all of its values."""
    dtype = np.dtype(wanted.dtype)
    if (dtype.kind == "O") != column.is_text:
        return False
    if not column.is_text and not np.can_cast(np.dtype(column.dtype), dtype, "safe"):
        return False
    shape: tuple[int | None, ...] = column.shape
    if column.takes_padding:
        if column.name not in pad:
            return False
        shape = (padding_of(pad[column.name])[1], *shape)
    return wanted.shape is None or (
        len(shape) == len(wanted.shape) and all(n in (None, own) for n, own in zip(wanted.shape, shape, strict=True))
    )


def read_batches(
    reader: Reader,
    shards: ShardSet,
    piece: Piece,
    batch_size: int,
    pad: Mapping[str, Any],
    ahead: ThreadPoolExecutor,
) -> Iterator[list[np.ndarray]]:
    """The batches of `piece`, one array `[B, ...]` a column; the next one is read meanwhile.

    Args:
        pad: What each column of numbers whose rows have different lengths is padded with.
    """
    start = int(shards.starts[piece.shard])
    firsts = range(piece.first, piece.end, batch_size)

    def rows(first: int) -> np.ndarray:
        return np.arange(start + first, start + min(first + batch_size, piece.end))

    coming = ahead.submit(reader.read, rows(firsts[0]))
    for first in firsts:
        batch = [_array(column, rows, pad) for column, rows in zip(shards.features, coming.result(), strict=True)]
        if first + batch_size < piece.end:
            coming = ahead.submit(reader.read, rows(first + batch_size))
        yield batch


def _array(column: Column, rows: np.ndarray | Ragged, pad: Mapping[str, Any]) -> np.ndarray:
    if not isinstance(rows, Ragged):
        return rows
    return rows.texts() if column.is_text else rows.padded(*padding_of(pad[column.name]))


def is_whole(path: Path, origin: Origin, first: int, end: int) -> bool:
    """Whether `path` holds the predictions of these rows, of this origin."""
    try:
        with InputFile(path, follow=False) as file:
            return file.text(ATTRIBUTE) == _attribute(origin, first, end) and all(
                len(dataset) == end - first for _, dataset in file.datasets()
            )
    except HDF5_ERRORS:
        return False


def why_not_ours(path: Path, origin: Origin) -> str:
    """What the file that is there in place of the predictions of `origin` is, in words."""
    try:
        with InputFile(path, follow=False) as file:
            recorded = json.loads(file.text(ATTRIBUTE))["origin"]
    except HDF5_ERRORS:
        return "is no file of predictions"
    differing = [key for key, value in asdict(origin).items() if recorded.get(key) != value]
    names = {
        "shard_bytes": "shard",
        "shard_time_ns": "shard",
        "export_digest": "export",
        "step": "export",
        "pad": "padding",
    }
    kinds = sorted({names.get(key, key) for key in differing})
    return f"holds predictions of another {' and '.join(kinds)}" if kinds else "is not whole"


def _attribute(origin: Origin, first: int, end: int) -> str:
    return json.dumps({"origin": asdict(origin), "rows": [first, end]}, sort_keys=True)


def write_predictions(
    path: Path, origin: Origin, first: int, end: int, batches: Iterable[Mapping[str, np.ndarray]]
) -> None:
    """Writes a file of predictions, which appears whole, by rename.

    Args:
        batches: Outputs by name, `[B, ...]`, from row `first` to row `end` of the shard.

    Raises:
        UserError: An output has not one row for each row of the input, or changes its shape.
        OSError: The file cannot be written; the message is a sentence with path and cause.
    """
    with writing(path):
        make_folder(path.parent, follow=True)
    with new_file(path) as file:
        with writing(path):
            file.attrs[ATTRIBUTE] = _attribute(origin, first, end)
        datasets: dict[str, Any] = {}
        position = 0
        for batch in batches:
            count = len(next(iter(batch.values()))) if all(np.ndim(array) for array in batch.values()) else 0
            with writing(path):
                for name, array in batch.items():
                    if (
                        array.dtype.kind == "V"
                    ):  # bfloat16 and the like, which HDF5 lacks; float32 holds all their values
                        array = array.astype(np.float32)
                    if name not in datasets:
                        dtype = h5py.string_dtype() if array.dtype == object else array.dtype
                        datasets[name] = file.create_dataset(name, (end - first, *array.shape[1:]), dtype)
                    if array.shape[1:] != datasets[name].shape[1:]:
                        raise UserError(
                            f"output {name!r} has rows of shape {list(array.shape[1:])} after rows of shape "
                            f"{list(datasets[name].shape[1:])}; all must be alike to be stored"
                        )
                    datasets[name][position : position + count] = array
            position += count
        if position != end - first:
            raise UserError(f"the export gave {position} rows of outputs for {end - first} rows of inputs")


def join_parts(path: Path, origin: Origin, pieces: Sequence[Piece]) -> None:
    """Makes one file of the parts of all `pieces` of a shard, in order; removes them, and what killed runs left.

    Raises:
        OSError: As write_predictions.
    """
    write_predictions(path, origin, 0, pieces[-1].end, _batches_of(part_path(path, piece) for piece in pieces))
    left = re.compile(rf"\.{{1,2}}{re.escape(path.name)}\.(rows-\d+-\d+\.part|(rows-\d+-\d+\.part\.)?[^/]+\.tmp)")
    for name in os.listdir(path.parent):
        if left.fullmatch(name):
            with suppress(FileNotFoundError):
                remove(path.parent / name)


def _batches_of(parts: Iterable[Path]) -> Iterator[dict[str, np.ndarray]]:
    for part in parts:
        with InputFile(part, follow=False) as file:
            datasets = dict(file.datasets())
            total = len(next(iter(datasets.values())))
            step = piece_rows([Field(name, d.dtype, d.shape[1:]) for name, d in datasets.items()])
            for first in range(0, total, step):
                yield {name: dataset[first : first + step] for name, dataset in datasets.items()}
