"""One checkpoint: a folder with state.h5, which h5py alone can read, and manifest.json, which makes it whole.

    step-00000200/state.h5
      attributes           format (3), step, world_size, time (seconds since 1970), fingerprint (of the model),
                           tf_random_seed (where the job has one), best (JSON: the best evaluation so far),
                           settings (JSON: text by path, what the run was asked for)
      data                 attributes rows_read and sizes (how far the data was read, see data.sampling.sampler);
                           seed, shuffle, rows and shards (its order) where it was of shards
      model/<name>         a dataset for each variable of the model
      optimizer/<name>     a dataset for each variable of the optimizer
      rng/<name>           what each rank has of its own, one row a rank, with a mesh one for each copy of the model:
                           states of random number generators outside the model, python, numpy (uint32) and tensorflow
                           (int64); layer_0, layer_1 …: states of stateful recurrent layers
    step-00000200/manifest.json    see manifest.py

A dataset's name is the variable's path with dots for slashes; its attributes `path` and `dtype` hold the originals
and `index` its place. Types that HDF5 lacks (bfloat16, float8) are stored as their bits in unsigned integers.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_train.checkpoint.best import best_in
from hpc_train.checkpoint.disk_io import Draft, Moved, idle, sync_to_disk, write_pieces
from hpc_train.checkpoint.manifest import FORMAT, STATE_FILE, DamagedError, write_manifest
from hpc_train.data.hdf5.data_file import HDF5_ERRORS, errno_of
from hpc_train.data.hdf5.heap_file import HeapFile
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from hpc_train.distributed.layout import BLOCK_BYTES
from hpc_train.distributed.remote_parts import RemoteArray
from hpc_train.distributed.share import Share

_GROUPS = ("model", "optimizer", "rng")
MAX_QUOTED = 300
"""Characters of an error that may quote what a damaged file holds."""
COUNTER = r"_\d+(?=[/ _]|$)"
"""What Keras appends to the names of layers (dense, dense_1, …), counting those of the process."""


@dataclass(frozen=True)
class Snapshot:
    """All that training needs to go on.

    Attributes:
        model, optimizer: Arrays by variable path, in the model's order; of which ranks hold parts, a RemoteArray, and
            what was left in the checkpoint, a StoredArray.
        progress: How far the data was read; order: in which order, None for an `input_fn`.
        world_size: The ranks that took part.
        time: When it was taken, in seconds since 1970; with the step it identifies a checkpoint.
        rng: Random states outside the model, `[n, …]` by generator: n ranks, with a mesh n copies of the model.
        best: The best evaluation so far (see manager.Best), None before the first.
        settings: What the run was asked for, see config.settings; None: written by a version that did not record it.
    """

    model: dict[str, Any]
    optimizer: dict[str, Any]
    progress: DataProgress
    order: DataOrder | None
    world_size: int
    time: float
    rng: dict[str, np.ndarray] = field(default_factory=dict)
    tf_random_seed: int | None = None
    best: dict[str, Any] | None = None
    settings: Mapping[str, str] | None = None

    @property
    def step(self) -> int:
        """The global step after which it was taken."""
        return self.progress.step

    @property
    def nbytes(self) -> int:
        """Bytes of all variables."""
        return sum(array.nbytes for arrays in (self.model, self.optimizer) for array in arrays.values())


@dataclass(frozen=True)
class StoredArray:
    """An array that was left in its checkpoint, where `dataset` is its name; see `read_parts`."""

    dataset: str
    shape: tuple[int, ...]
    dtype: np.dtype


class NotFiniteError(ValueError):
    """A variable holds NaN; the message names it."""


def fingerprint(model: Mapping[str, np.ndarray], optimizer: Mapping[str, np.ndarray]) -> str:
    """A digest of all variables' paths, shapes and dtypes, without the numbers that Keras gives a process's layers."""
    lines = [
        f"{kind} {re.sub(COUNTER, '', path)} {array.dtype.name} {list(array.shape)}"
        for kind, arrays in (("model", model), ("optimizer", optimizer))
        for path, array in arrays.items()
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def refuse_nan(snapshot: Snapshot) -> None:
    """NotFiniteError where a variable of `snapshot` holds NaN; a RemoteArray is looked at while it is written."""
    for kind, arrays in (("model", snapshot.model), ("optimizer", snapshot.optimizer)):
        for path, array in arrays.items():
            if not isinstance(array, RemoteArray):
                _refuse_nan(kind, path, array)


def _refuse_nan(kind: str, path: str, array: np.ndarray) -> None:
    # A minimum is NaN where any element is; unlike isnan(array) it needs no memory.
    if array.size and not np.issubdtype(array.dtype, np.integer) and array.dtype != np.bool_:
        with np.errstate(invalid="ignore"):
            if bool(np.isnan(np.min(array))):
                raise NotFiniteError(f"{kind} variable {path} holds NaN")


def write_checkpoint(folder: Path, snapshot: Snapshot, moved: Moved = idle) -> None:
    """Writes `snapshot` into `folder`, which exists, its manifest last; all is on the disk afterwards.

    HDF5 lays out the file, and the variables are written past it: so other threads run meanwhile.

    Raises:
        OSError: With errno and path. NotFiniteError: a RemoteArray holds NaN.
    """
    path = folder / STATE_FILE
    draft = Draft()
    with h5py.File(draft, "w") as file:
        _write_about(file, snapshot)
        places = [p for name in _GROUPS for p in _lay_out(file.create_group(name), getattr(snapshot, name))]
    moved()
    pieces = (piece for place in places for piece in _bytes(*place))
    write_pieces(path, draft.size, chain(draft.pieces(), pieces), moved)
    write_manifest(folder, snapshot.step, snapshot.time, snapshot.world_size, moved)
    sync_to_disk(folder)


def read_snapshot(folder: Path, left: Collection[str] | None = ()) -> Snapshot:
    """Reads the checkpoint in `folder`, whose digests have been checked.

    Args:
        left: Variables ("model/dense/kernel") whose values are not read, whatever numbers Keras has given their layers:
            of these the snapshot has a StoredArray. None: of all.

    Raises:
        OSError: It cannot be read. DamagedError: it is not a checkpoint of this format.
    """
    with _opened(folder) as (file, held):
        progress, order = _read_progress(file, held)
        left = left and {re.sub(COUNTER, "", name) for name in left}
        about = held.attributes(file, "world_size", "time", "tf_random_seed", "best", "settings")
        seed, best = about.get("tf_random_seed"), about.get("best")
        return Snapshot(
            _read_group(_group(file, held, "model"), held, left),
            _read_group(_group(file, held, "optimizer"), held, left),
            progress,
            order,
            int(about["world_size"]),
            float(about["time"]),
            _read_group(_group(file, held, "rng"), held),
            None if seed is None else int(seed),
            None if best is None else asdict(best_in(json.loads(best))),
            _settings(about),
        )


def read_parts(folder: Path, wanted: Mapping[str, tuple[str, Share | None]]) -> Iterator[tuple[str, np.ndarray]]:
    """Reads of the checkpoint in `folder` parts of arrays, one after the other, and of each hardly more than the part.

    Args:
        wanted: By any name, with which each comes: a StoredArray's dataset, and which part of it; None: all.

    Yields:
        The name, and the part as it is held.

    Raises: As `read_snapshot`.
    """
    with _opened(folder) as (file, held):
        for name, (dataset, share) in wanted.items():
            _, kind, own = dataset.split("/")
            found = _own(_group(file, held, kind), held, own)
            dtype = str(held.attributes(found, "dtype")["dtype"])
            if share is None:
                yield name, _as_stored(found[()], dtype)
            elif found.shape != share.shape:
                raise DamagedError(f"{found.name}: is not of the shape that it had")
            else:
                yield name, _as_stored(_part(found, share), dtype)


def _part(dataset: h5py.Dataset, share: Share) -> np.ndarray:
    """`share` of the dataset, read block by block."""
    part: np.ndarray = np.empty(share.size, dataset.dtype)
    width = math.prod(share.box[1:])
    at_once = max(1, BLOCK_BYTES // max(1, width * part.itemsize)) * width
    for begin in range(0, share.size, max(1, at_once)):
        block = share.narrowed(begin, min(begin + at_once, share.size))
        part[begin : begin + block.size] = _rows(dataset, block).reshape(-1)[block.first % width :][: block.size]
    return part.reshape(share.held)


def _rows(dataset: h5py.Dataset, share: Share) -> np.ndarray:
    """The rows of the box of `share`, which is not empty, that hold its elements."""
    width = math.prod(share.box[1:])
    rows = slice(share.first // width, -(-(share.first + share.size) // width))
    places = [rows, *(slice(0, count) for count in share.box[1:])]
    along = places[share.axis]
    places[share.axis] = slice(along.start + share.start, along.stop + share.start)
    found: np.ndarray = dataset[tuple(places)]
    return found


def read_settings(folder: Path) -> dict[str, str] | None:
    """What the run that wrote the checkpoint in `folder` was asked for; None where that is not recorded.

    Raises: As `read_snapshot`.
    """
    with _opened(folder) as (file, held):
        return _settings(held.attributes(file, "settings"))


def read_progress(folder: Path) -> tuple[DataProgress, DataOrder | None]:
    """How far the checkpoint in `folder` had read its data, and in which order; nothing else is read.

    Raises: As `read_snapshot`.
    """
    with _opened(folder) as (file, held):
        return _read_progress(file, held)


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[h5py.File, HeapFile]]:
    path = folder / STATE_FILE
    held = HeapFile(path)
    try:
        with held, h5py.File(held, "r") as file:
            yield file, held
    except DamagedError as error:
        raise DamagedError(f"{path}: {error}") from None
    except (AttributeError, MemoryError) as error:
        raise DamagedError(f"{path}: not a checkpoint of this format") from error
    except HDF5_ERRORS as error:
        number = errno_of(error)
        if number is not None:  # which HDF5 reports in words alone
            raise OSError(number, os.strerror(number), str(path)) from error
        raise DamagedError(f"{path}: not a readable checkpoint: {str(error)[:MAX_QUOTED]}") from error


def _write_about(file: h5py.File, snapshot: Snapshot) -> None:
    file.attrs["format"] = FORMAT
    for name in ("step", "world_size", "time"):
        file.attrs[name] = getattr(snapshot, name)
    file.attrs["fingerprint"] = fingerprint(snapshot.model, snapshot.optimizer)
    if snapshot.tf_random_seed is not None:
        file.attrs["tf_random_seed"] = snapshot.tf_random_seed
    if snapshot.best is not None:
        file.attrs["best"] = json.dumps(snapshot.best)
    if snapshot.settings is not None:
        file.attrs["settings"] = json.dumps(dict(snapshot.settings))
    data = file.create_group("data").attrs
    data["rows_read"] = snapshot.progress.rows_read
    data["sizes"] = np.array(snapshot.progress.sizes, np.int64).reshape(-1, 2)
    if snapshot.order is not None:
        data.update(asdict(snapshot.order))


def _read_progress(file: h5py.File, held: HeapFile) -> tuple[DataProgress, DataOrder | None]:
    data = held.attributes(_group(file, held, "data"), "rows_read", "sizes", "seed", "shuffle", "rows", "shards")
    sizes = tuple((int(rows_read), int(size)) for rows_read, size in data["sizes"])
    step = int(held.attributes(file, "step")["step"])
    progress = DataProgress(step, int(data["rows_read"]), sizes)
    if "seed" not in data:
        return progress, None
    return progress, DataOrder(int(data["seed"]), _text(data["shuffle"]), int(data["rows"]), _text(data["shards"]))


def _settings(about: Mapping[str, Any]) -> dict[str, str] | None:
    found = json.loads(about["settings"]) if "settings" in about else None
    if isinstance(found, dict):
        return {key: _text(value) for key, value in found.items()}
    if found is None:
        return None
    raise DamagedError("its settings are no mapping")


def _text(value: object) -> Any:
    if isinstance(value, str):
        return value
    raise DamagedError("one of its attributes is no text")


def _lay_out(group: h5py.Group, arrays: dict[str, Any]) -> list[tuple[int, str, Any]]:
    """Makes a dataset for each array and reserves its place; returns where to write which array, and its name."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    text, number = _AttributeType(h5py.string_dtype()), _AttributeType(np.dtype(np.int64))
    places, names = [], set()
    for index, (path, array) in enumerate(arrays.items()):
        stored = array.dtype if array.dtype.kind in "biufc" else np.dtype(f"u{array.dtype.itemsize}")
        name = path.replace("/", ".")
        name = name if name not in names else f"{name}.{index}"
        names.add(name)
        kind, space = h5py.h5t.py_create(stored, logical=True), h5py.h5s.create_simple(array.shape)
        identifier = h5py.h5d.create(group.id, name.encode(), kind, space, dcpl=properties)
        text.write(identifier, b"path", path)
        text.write(identifier, b"dtype", array.dtype.name)
        number.write(identifier, b"index", index)
        if array.nbytes:
            places.append((identifier.get_offset(), f"{group.name}/{path}", array))
    return places


def _bytes(offset: int, name: str, array: Any) -> Iterable[tuple[int, memoryview]]:
    """The bytes to write from `offset` on, of a RemoteArray as they come."""
    if not isinstance(array, RemoteArray):
        yield offset, array.reshape(-1).view(np.uint8).data
        return
    _, kind, path = name.split("/", 2)
    for start, block in array.blocks():
        _refuse_nan(kind, path, block)
        yield offset + start * array.dtype.itemsize, block.view(np.uint8).data


class _AttributeType:
    """Writes scalar attributes of one dtype, at a third of what `Dataset.attrs` costs."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype, self._space = dtype, h5py.h5s.create_simple(())
        self._stored, self._given = h5py.h5t.py_create(dtype, logical=True), h5py.h5t.py_create(dtype)

    def write(self, dataset: h5py.h5d.DatasetID, name: bytes, value: str | int) -> None:
        attribute = h5py.h5a.create(dataset, name, self._stored, self._space)
        attribute.write(np.array(value, self._dtype), mtype=self._given)


def _read_group(group: h5py.Group, held: HeapFile, left: Collection[str] | None = ()) -> dict[str, Any]:
    datasets, rest = [], group.file.id.get_filesize()
    for name in group:
        dataset = _own(group, held, name)
        rest -= dataset.nbytes
        if rest < 0:
            raise DamagedError(f"{dataset.name} has more values than the file holds")
        about = held.attributes(dataset, "index", "path", "dtype")
        datasets.append((int(about["index"]), str(about["path"]), str(about["dtype"]), dataset))
    datasets.sort(key=lambda found: found[0])

    def value(path: str, dtype: str, dataset: h5py.Dataset) -> Any:
        if left is None or re.sub(COUNTER, "", f"{group.name[1:]}/{path}") in left:
            return StoredArray(dataset.name, dataset.shape, _as_stored(np.empty(0, dataset.dtype), dtype).dtype)
        return _as_stored(dataset[()], dtype)

    return {path: value(path, dtype, dataset) for _, path, dtype, dataset in datasets}


def _group(file: h5py.File, held: HeapFile, name: str) -> h5py.Group:
    """The group `name` of this file itself: a link may lead to any other."""
    group = held.own(file, name)
    if isinstance(group, h5py.Group):
        return group
    raise DamagedError(f"/{name}: is no group of this file")


def _own(group: h5py.Group, held: HeapFile, name: str) -> h5py.Dataset:
    """The dataset `name`, whose values lie in this file as `_lay_out` lays them out."""
    dataset = held.own(group, name)
    if isinstance(dataset, h5py.Dataset) and dataset.dtype.kind in "biufc" and dataset.shape is not None:
        layout = dataset.id.get_create_plist()
        plain = layout.get_layout() == h5py.h5d.CONTIGUOUS and layout.get_external_count() == 0
        if plain and dataset.id.get_storage_size() == dataset.nbytes:
            return dataset
    raise DamagedError(f"{group.name}/{name}: its values do not lie in the file as a checkpoint's do")


def _as_stored(array: np.ndarray, dtype: str) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.name == dtype:
        return array
    import ml_dtypes

    try:
        return array.view(np.dtype(getattr(ml_dtypes, dtype)))
    except (AttributeError, TypeError, ValueError):
        raise DamagedError(f"holds values of an unknown type {dtype[:40]!r}") from None
