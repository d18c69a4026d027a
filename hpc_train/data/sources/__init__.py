"""What `hpc-train shard` reads: one module a format, each giving a file's columns as a `Part`."""

from __future__ import annotations

import glob
import zlib
from collections.abc import Sequence
from pathlib import Path

import h5py

from hpc_train.data.hdf5.input_file import NONE, Consent
from hpc_train.data.sources.hdf5 import open_hdf5
from hpc_train.data.sources.idx import DTYPES, open_idx
from hpc_train.data.sources.npy import open_npy, open_npz
from hpc_train.data.sources.recipe import Part, Recipe
from hpc_train.data.sources.table import is_gzipped, open_unzipped
from hpc_train.data.sources.tfrecord import TFRecord, looks_like_tfrecord
from hpc_train.errors import UserError
from hpc_train.files import open_to_read

KINDS = ".npz, HDF5, CSV (.csv, .tsv), Parquet, TFRecord, or NAME=FILE for .npy and IDX; .gz for CSV, TFRecord and IDX"

Named = tuple[str, Path]
"""A source file, and the column name given with it, or ""."""


def expand(sources: Sequence[str]) -> list[Named]:
    """The files that `sources` name: FILE or NAME=FILE, where FILE may be a pattern.

    Raises:
        UserError: One that matches no file.
    """
    files: list[Named] = []
    for source in sources:
        name, named, path = source.partition("=")
        if not named or _matches(source):
            name, path = "", source
        found = _matches(path)
        if not found:
            raise UserError(f"{path}: no such file")
        files += [(name, file) for file in found]
    return files


def _matches(pattern: str) -> list[Path]:
    return [Path(pattern)] if Path(pattern).is_file() else sorted(map(Path, glob.glob(pattern)))


def open_part(name: str, path: Path, recipe: Recipe, header: bool | None, consent: Consent = NONE) -> Part:
    """Opens a file as the kind that its first bytes, or its name, show.

    Args:
        header: Whether the first line of a CSV file names its columns; None: it does, and looks like it.

    Raises:
        UserError: Of no kind that is known, not readable, or a NAME given or missing.
    """
    targets = recipe.types_in_sources()
    try:
        with open_to_read(path, follow=True) as file:
            start = file.read(16)
        with open_unzipped(path) as stream:
            inner = stream.read(16)
        if not start:
            raise UserError(f"{path}: is empty")
        if start.startswith(b"\x93NUMPY") or (not looks_like_tfrecord(inner) and _is_idx(inner)):
            if not name:
                raise UserError(f"{path}: gives its column no name; write NAME={path}")
            return open_npy(path, name) if start.startswith(b"\x93NUMPY") else open_idx(path, name)
        if name:
            raise UserError(f"{name}={path}: the file names its columns itself; NAME= is for .npy and IDX files")
        if start.startswith(b"PK"):
            return open_npz(path)
        if start.startswith(b"PAR1"):
            from hpc_train.data.sources.parquet import Parquet  # and so pyarrow, which ranks that train do without

            return Parquet(path, targets)
        if looks_like_tfrecord(inner):
            return TFRecord(path, targets)
        if path.name.removesuffix(".gz").lower().endswith((".csv", ".tsv")):
            from hpc_train.data.sources.csv import CSV

            return CSV(path, header, targets)
        if not is_gzipped(path) and (path.suffix in (".h5", ".hdf5") or h5py.is_hdf5(path)):
            return open_hdf5(path, consent)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    raise UserError(f"{path}: cannot tell what this is; give {KINDS}")


def _is_idx(start: bytes) -> bool:
    return len(start) >= 4 and start[:2] == b"\0\0" and start[2] in DTYPES and start[3] < 16
