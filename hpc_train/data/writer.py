"""Writes arrays as HDF5 shards, each under a temporary name first, so that no half-written shard is ever seen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_train.errors import UserError

SCHEMA_ATTRIBUTE = "hpc_train_schema"
PIECE_BYTES = 16 << 20


def write_shards(prefix: str | Path, columns: Mapping[str, Any], shards: int = 8) -> list[Path]:
    """Writes `<prefix>-00000.h5` … with the same number of rows each, give or take one. Local.

    Args:
        prefix: Folder and beginning of the file names; the folder is made where it is missing.
        columns: Arrays `[rows, ...]` by dataset name, all with as many rows: numpy arrays, memory maps or HDF5
            datasets. They are read piece by piece, never whole.
        shards: Number of files.

    Returns:
        The files. Each has an attribute `hpc_train_schema`: JSON with `version`, `rows` and, for each column, its
        `shape` without the rows and its `dtype`.

    Raises:
        UserError: Columns without numbers or of different lengths, more shards than rows, or shards of that prefix
            already there (reading would mix old and new rows).
    """
    prefix = Path(prefix)
    rows = _check(columns, shards)
    old = sorted(prefix.parent.glob(f"{glob_escape(prefix.name)}-[0-9][0-9][0-9][0-9][0-9].h5"))
    if old:
        raise UserError(f"{old[0]}: already there, with {len(old) - 1} more; remove them or choose another prefix")
    prefix.parent.mkdir(parents=True, exist_ok=True)
    bounds = [rows * i // shards for i in range(shards + 1)]
    paths = [prefix.parent / f"{prefix.name}-{i:05d}.h5" for i in range(shards)]
    for path, first, end in zip(paths, bounds, bounds[1:], strict=False):
        _write_shard(path, columns, first, end)
    return paths


def glob_escape(name: str) -> str:
    """`name` with the characters that `Path.glob` would expand taken literally."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _check(columns: Mapping[str, Any], shards: int) -> int:
    if not columns:
        raise UserError("no columns to write")
    lengths = {}
    for name, array in columns.items():
        if "/" in name or not name:
            raise UserError(f"column {name!r}: a dataset name is not empty and has no '/'")
        if not array.shape or array.dtype.kind not in "buifc":
            raise UserError(f"column {name!r}: {array.dtype} {list(array.shape)} does not hold numbers in rows")
        lengths[name] = array.shape[0]
    rows = next(iter(lengths.values()))
    if any(n != rows for n in lengths.values()):
        raise UserError(f"columns of different lengths: {', '.join(f'{k} has {n} rows' for k, n in lengths.items())}")
    if not 1 <= shards <= rows:
        raise UserError(f"cannot write {rows} rows to {shards} shards: between 1 and {max(rows, 1)} are possible")
    return int(rows)


def _write_shard(path: Path, columns: Mapping[str, Any], first: int, end: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    schema = {
        "version": 1,
        "rows": end - first,
        "columns": {n: {"shape": list(a.shape[1:]), "dtype": a.dtype.name} for n, a in columns.items()},
    }
    try:
        with h5py.File(temporary, "x") as file:
            file.attrs[SCHEMA_ATTRIBUTE] = json.dumps(schema)
            for name, array in columns.items():
                dataset = file.create_dataset(name, (end - first, *array.shape[1:]), array.dtype)
                row_bytes = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize)
                piece = max(1, PIECE_BYTES // row_bytes)
                for start in range(first, end, piece):
                    stop = min(start + piece, end)
                    dataset[start - first : stop - first] = array[start:stop]
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
