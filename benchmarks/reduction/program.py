"""Reduces shards, or adapts layers to them, again and again; the chief writes the seconds of each time. A program.

python -m reduction.program WHAT FOLDER TIMES OUT
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import hpc_train as ht

NUMBERS, WORDS, CODES = ("x0", "x1", "x2", "x3"), ("word0", "word1"), ("code0", "code1")
COLUMNS = (*NUMBERS, *WORDS, *CODES)
MOMENTS, ALL, OURS, KERAS = "moments", "statistics", "ht.adapt", "FeatureSpace.adapt"


def actions(folder: Path) -> Mapping[str, Callable[[], Any]]:
    """What can be measured, by name."""
    numbers = ht.HDF5Input(str(folder / "rows-*.h5"), features=NUMBERS, label=())
    source = ht.HDF5Input(str(folder / "rows-*.h5"), features=COLUMNS, label=())
    return {
        MOMENTS: lambda: ht.map_reduce(None, {name: ht.reducers.Moments() for name in NUMBERS}, numbers),
        ALL: lambda: all_statistics(source),
        OURS: lambda: ht.adapt(feature_space(), source),
        KERAS: lambda: feature_space().adapt(rows_in_memory(folder)),
    }


def all_statistics(source: ht.HDF5Input) -> Any:
    """What `hpc-train stats` computes."""
    from hpc_train.distributed.startup import join_world
    from hpc_train.mapreduce.statistics import statistics

    return statistics(join_world(), source)


def feature_space() -> Any:
    """Eight features that learn from data."""
    import keras

    of = keras.utils.FeatureSpace
    return of(
        {
            **{name: of.float_normalized() for name in NUMBERS},
            **{name: of.string_categorical() for name in WORDS},
            **{name: of.integer_categorical() for name in CODES},
        },
        output_mode="dict",
    )


_kept: dict[Path, dict[str, np.ndarray]] = {}


def rows_in_memory(folder: Path) -> Any:
    """The same rows for Keras: in memory, in batches, so that it need not read."""
    import tensorflow as tf

    if folder not in _kept:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
        for path in sorted(folder.glob("rows-*.h5")):
            with h5py.File(path) as file:
                for name in COLUMNS:
                    parts[name].append(file[name][:])
        _kept[folder] = {name: np.concatenate(found) for name, found in parts.items()}
    return tf.data.Dataset.from_tensor_slices(_kept[folder]).batch(1024)


def write_rows(folder: Path, rows: int, shards: int = 4) -> None:
    """Writes shards of four columns of compressed numbers, two of words and two of codes."""
    chance = np.random.default_rng(1)
    words = np.array([f"word {number}" for number in range(500)], object)
    for shard in range(shards):
        count = rows // shards
        with h5py.File(folder / f"rows-{shard}.h5", "w") as file:
            chunked: dict[str, Any] = {"chunks": (min(8192, count),), "compression": "gzip", "shuffle": True}
            for name in NUMBERS:
                file.create_dataset(name, data=chance.normal(size=count).astype(np.float32), **chunked)
            for name in WORDS:
                chosen = words[np.minimum(chance.zipf(1.3, count), 500) - 1]
                file.create_dataset(name, data=chosen, dtype=h5py.string_dtype())
            for name in CODES:
                file.create_dataset(name, data=chance.integers(0, 1000, count), **chunked)


def main() -> None:
    what, folder, times, out = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    action, secs = actions(folder)[what], []
    for _ in range(times + 1):  # the first time imports and reads into memory
        begun = time.perf_counter()
        action()
        secs.append(time.perf_counter() - begun)
    if ht.is_chief():
        out.write_text(json.dumps(secs[1:]))


if __name__ == "__main__":
    main()
