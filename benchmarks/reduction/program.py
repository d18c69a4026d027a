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

import numpy as np

import hpc_train as ht
from hpc_train.data import write_shards

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
        _kept[folder] = made_rows(int((folder / "count").read_text()))
    return tf.data.Dataset.from_tensor_slices(_kept[folder]).batch(1024)


def made_rows(count: int) -> dict[str, np.ndarray]:
    """Four columns of numbers, two of words and two of codes; always the same."""
    chance = np.random.default_rng(1)
    words = np.array([f"word {number}" for number in range(500)], object)
    return {
        **{name: chance.normal(size=count).astype(np.float32) for name in NUMBERS},
        **{name: words[np.minimum(chance.zipf(1.3, count), 500) - 1] for name in WORDS},
        **{name: chance.integers(0, 1000, count) for name in CODES},
    }


def write_rows(folder: Path, count: int) -> None:
    """Writes them as shards, which gzip compresses."""
    write_shards(folder / "rows", made_rows(count), shards=4, compression="gzip")
    (folder / "count").write_text(str(count))


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
