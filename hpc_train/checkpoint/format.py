"""One checkpoint: a folder with state.h5, which h5py alone can read.

    step-00000200/state.h5
      attributes           format (2), step, world_size, time (seconds since 1970)
      data                 attributes rows_read and sizes (how far the data was read, see data.sampler.DataProgress);
                           seed, shuffle, rows and shards (its order) where it was of shards
      model/<name>         a dataset for each variable of the model
      optimizer/<name>     a dataset for each variable of the optimizer

A dataset's name is the variable's path with dots for slashes; its attributes `path` and `dtype` hold the originals
and `index` its place. bfloat16, which HDF5 lacks, is stored as its 16 bits in uint16.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py
import numpy as np

from hpc_train.data.sampler import DataOrder, DataProgress

FORMAT = 2
STATE_FILE = "state.h5"


@dataclass(frozen=True)
class Snapshot:
    """All that training needs to go on.

    Attributes:
        model, optimizer: Arrays by variable path, in the model's order.
        progress: How far the data was read; order: in which order, None for an `input_fn`.
        world_size: The ranks that took part.
        time: When it was taken, in seconds since 1970; with the step it tells one checkpoint from another.
    """

    model: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    progress: DataProgress
    order: DataOrder | None
    world_size: int
    time: float

    @property
    def step(self) -> int:
        """The global step after which it was taken."""
        return self.progress.step


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Writes `snapshot` into `folder`, which exists, and waits until it is on the disk."""
    path = folder / STATE_FILE
    with h5py.File(path, "x") as file:
        file.attrs["format"] = FORMAT
        for name in ("step", "world_size", "time"):
            file.attrs[name] = getattr(snapshot, name)
        data = file.create_group("data").attrs
        data["rows_read"] = snapshot.progress.rows_read
        data["sizes"] = np.array(snapshot.progress.sizes, np.int64).reshape(-1, 2)
        if snapshot.order is not None:
            data.update(asdict(snapshot.order))
        _write_group(file.create_group("model"), snapshot.model)
        _write_group(file.create_group("optimizer"), snapshot.optimizer)
    for target in (path, folder):
        sync_to_disk(target)


def read_snapshot(folder: Path) -> Snapshot:
    """Reads the checkpoint in `folder`.

    Raises:
        OSError: It cannot be read, or is not a checkpoint of this format.
    """
    with _opened(folder) as file:
        progress, order = _read_progress(file)
        return Snapshot(
            _read_group(file["model"]),
            _read_group(file["optimizer"]),
            progress,
            order,
            int(file.attrs["world_size"]),
            float(file.attrs["time"]),
        )


def read_progress(folder: Path) -> tuple[DataProgress, DataOrder | None]:
    """How far the checkpoint in `folder` had read its data, and in which order; nothing else is read.

    Raises:
        OSError: As `read_snapshot`.
    """
    with _opened(folder) as file:
        return _read_progress(file)


@contextmanager
def _opened(folder: Path) -> Iterator[h5py.File]:
    path = folder / STATE_FILE
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            if int(file.attrs["format"]) != FORMAT:
                raise OSError(f"format {file.attrs['format']}, but this version reads format {FORMAT}")
            yield file
    except (OSError, KeyError, ValueError) as error:
        raise OSError(f"{path}: not a readable checkpoint: {error}") from error


def _read_progress(file: h5py.File) -> tuple[DataProgress, DataOrder | None]:
    data = file["data"].attrs
    sizes = tuple((int(rows_read), int(size)) for rows_read, size in data["sizes"])
    progress = DataProgress(int(file.attrs["step"]), int(data["rows_read"]), sizes)
    if "seed" not in data:
        return progress, None
    return progress, DataOrder(int(data["seed"]), data["shuffle"], int(data["rows"]), data["shards"])


def sync_to_disk(path: Path) -> None:
    """Waits until what was written to a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_group(group: h5py.Group, arrays: dict[str, np.ndarray]) -> None:
    for index, (path, array) in enumerate(arrays.items()):
        stored = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        name = path.replace("/", ".")
        dataset = group.create_dataset(name if name not in group else f"{name}.{index}", data=stored)
        dataset.attrs.update({"path": path, "dtype": array.dtype.name, "index": index})


def _read_group(group: h5py.Group) -> dict[str, np.ndarray]:
    datasets = sorted(group.values(), key=lambda dataset: int(dataset.attrs["index"]))
    return {str(d.attrs["path"]): _as_stored(d[()], str(d.attrs["dtype"])) for d in datasets}


def _as_stored(array: np.ndarray, dtype: str) -> np.ndarray:
    array = np.asarray(array)
    if dtype != "bfloat16":
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)
