"""The mean of checkpoints' weights: what is averaged, what is the last one's, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from hpc_train import HDF5Input, UserError
from hpc_train.data.loading.batch_source import ONE_THREAD
from hpc_train.ensembles.averaging import average_weights

ROWS = 23


class Counting(keras.layers.Layer):
    """It keeps numbers of kinds of its own."""

    def __init__(self, table: bool) -> None:
        super().__init__()
        self._table = table

    def build(self, shape: Any) -> None:
        def own(name: str, shape: tuple[int, ...], dtype: str) -> Any:
            return self.add_weight(shape=shape, dtype=dtype, initializer="zeros", trainable=False, name=name)

        self.calls, self.level = own("calls", (), "int32"), own("level", (2,), "float32")
        self.table = own("table", (3,), "int32") if self._table else None

    def call(self, inputs: Any) -> Any:
        return inputs


def model(number: int, table: bool = False, norm: bool = True) -> keras.Model:
    """Of a number that is in all its variables."""
    keras.utils.clear_session()
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), Counting(table), keras.layers.Dense(2)]
    made = keras.Sequential([keras.Input((3,)), *layers, *([keras.layers.BatchNormalization()] if norm else [])])
    for variable in made.variables:
        variable.assign(np.full(variable.shape, number, variable.dtype))
    return made


def restored(made: keras.Model, folder: Path) -> Any:
    source = HDF5Input(str(folder / "rows.h5"), batch_size=5, features="x", label="y", seed=3)
    job = SimpleNamespace(name="model.py:build", inputs=(source, source), load=None)
    return SimpleNamespace(model=made, job=job)


def average(folder: Path, **options: Any) -> tuple[keras.Model, list[str]]:
    """The average of models of 1, 2 and 6, and what was reported."""
    with h5py.File(folder / "rows.h5", "w") as file:
        file["x"], file["y"] = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("f4"), np.zeros(ROWS, "i8")
    into, said = restored(model(6, **options), folder), list[str]()
    average_weights([restored(model(n, **options), folder) for n in (1, 2, 6)], into, ONE_THREAD, said.append)
    return into.model, said


def test_what_is_trained_is_averaged_and_all_else_is_the_last_ones(tmp_path: Path) -> None:
    made, said = average(tmp_path)
    dense, dropout, counting, last, norm = made.layers
    for variable in (dense.kernel, dense.bias, last.kernel, norm.gamma, norm.beta):
        np.testing.assert_array_equal(variable, np.full(variable.shape, 3, np.float32))
    np.testing.assert_array_equal(dropout.seed_generator.state, [6, 6])
    assert int(counting.calls) == 6
    np.testing.assert_array_equal(counting.level, [6, 6])
    assert not np.array_equal(norm.moving_mean, [6, 6])
    assert said == [
        f"batch normalization: averages of 1 layer computed anew over {ROWS} training rows",
        "sequential/counting/level: is that of the last checkpoint, since it is not trained",
    ]


def test_the_same_comes_out_again(tmp_path: Path) -> None:
    first, second = (average(tmp_path)[0] for _ in range(2))
    for one, other in zip(first.variables, second.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_are_read_only_where_something_is_computed_anew(tmp_path: Path) -> None:
    members = [restored(model(n, norm=False), tmp_path / "nowhere") for n in (1, 3)]
    into = restored(model(3, norm=False), tmp_path / "nowhere")
    average_weights(members, into, ONE_THREAD, lambda _: None)
    np.testing.assert_array_equal(into.model.layers[0].bias, [2, 2, 2, 2])


def test_whole_numbers_that_training_changes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"its variable sequential/counting/table, int32 \[3\], differs .*: snapshot"):
        average(tmp_path, table=True)


def test_means_are_taken_in_double_precision(tmp_path: Path) -> None:
    members = [restored(model(0, norm=False), tmp_path) for _ in range(3)]
    values = np.array([1e8, 1.0, -1e8], np.float32)
    for member, value in zip(members, values, strict=True):
        member.model.layers[0].bias.assign(np.full(4, value))
    into = restored(model(0, norm=False), tmp_path)
    average_weights(members, into, ONE_THREAD, lambda _: None)
    np.testing.assert_array_equal(into.model.layers[0].bias, np.full(4, np.float32(1 / 3)))
