"""Training and evaluation data that go together, whatever their datasets are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hpc_train as ht
from hpc_train.config.table_schema import read_schema
from hpc_train.data.writing.convert import Options, convert
from hpc_train.training.data_check import check_schema, checked_shards, notes_on_types

ROWS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards")
    for name, columns in {
        "train": {"image": ("u1", 8), "age": ("f4", 1), "label": ("i8", 0)},
        "other": {"x_test": ("u1", 8), "years": ("f8", 1), "y_test": ("i4", 0)},
        "odd": {"wide": ("u1", 9), "scaled": ("f4", 8), "complex": ("c8", 8), "y": ("f4", 0)},
    }.items():
        with h5py.File(path / f"{name}.h5", "w") as file:
            for column, (dtype, width) in columns.items():
                file[column] = np.zeros((ROWS, width) if width else ROWS, dtype)
    return path


def checked(folder: Path, train: dict[str, Any], evaluation: dict[str, Any], file: str = "other") -> list[str]:
    """The notes on these two inputs."""
    specs = (
        ht.TrainSpec(ht.HDF5Input(str(folder / "train.h5"), batch_size=4, **train), max_steps=1),
        ht.EvalSpec(ht.HDF5Input(str(folder / f"{file}.h5"), **evaluation)),
    )
    return notes_on_types(checked_shards(1, specs[0], specs[1:], 1), specs)


@pytest.mark.parametrize(
    ("train", "evaluation"),
    [
        ({"features": "image"}, {"features": "x_test", "label": "y_test"}),
        ({"features": {"a": "image"}}, {"features": {"a": "x_test"}, "label": "y_test"}),
        ({"features": ["image", "age"]}, {"features": {"age": "years", "image": "x_test"}, "label": "y_test"}),
        ({}, {"features": {"age": "years", "image": "x_test"}, "label": "y_test"}),
        ({"features": "image", "label": {"out": "label"}}, {"features": "x_test", "label": {"out": "y_test"}}),
        ({"features": "image", "label": []}, {"features": "x_test", "label": []}),
    ],
)
def test_an_evaluation_names_its_own_datasets(folder: Path, train: dict[str, Any], evaluation: dict[str, Any]) -> None:
    assert checked(folder, train, evaluation) == []


@pytest.mark.parametrize(
    ("train", "evaluation", "file", "said"),
    [
        ({}, {"label": "y_test"}, "other", "a dict of x_test, years, but in training as a dict of age, image; give th"),
        ({"features": "image"}, {"features": {"a": "x_test"}, "label": "y_test"}, "other", "give this input `features"),
        ({"features": {"a": "image"}}, {"features": "x_test", "label": "y_test"}, "other", "`features:` {a: …} with i"),
        ({"features": "image"}, {"label": "y_test"}, "other", "2 features (x_test, years), but training has 1 feature"),
        ({"features": "image"}, {}, "other", "which dataset is the label? Give `label`; the file has x_test"),
        ({"features": "image"}, {"features": "x_tets", "label": "y_test"}, "other", "no dataset 'x_tets'; did you mea"),
        ({"features": "image"}, {"features": "wide"}, "odd", "feature 'wide' is uint8 [rows, 9], but training has 'im"),
        ({"features": "image"}, {"features": "complex"}, "odd", "feature 'complex' is complex64 [rows, 8], but traini"),
    ],
)  # fmt: skip
def test_what_the_model_cannot_take_is_refused(
    folder: Path, train: dict[str, Any], evaluation: dict[str, Any], file: str, said: str
) -> None:
    with pytest.raises(ht.UserError) as error:
        checked(folder, train, evaluation, file)
    assert said in str(error.value)


def test_whole_numbers_in_one_and_fractions_in_the_other_are_noted(folder: Path) -> None:
    (note,) = checked(folder, {"features": "image"}, {"features": "scaled"}, "odd")
    assert "odd.h5: feature 'scaled' is float32, but training has 'image', uint8: the model gets both as they" in note


def test_a_map_fn_of_its_own_may_make_up_for_other_shapes(folder: Path) -> None:
    def crop(x: Any, y: Any) -> Any:
        return x[:, :8], y

    assert checked(folder, {"features": "image"}, {"features": "wide", "map_fn": crop}, "odd") == []
    with pytest.raises(ht.UserError, match="feature 'wide' is uint8"):
        checked(folder, {"features": "image", "map_fn": crop}, {"features": "wide", "map_fn": crop}, "odd")


CLASSES_SCHEMA = """\
task: classes
columns:
  city: {type: text, role: categorical, vocabulary: [Bern]}
  size: {type: text, role: label, vocabulary: [small, large, "odd\\e"]}
"""


@pytest.mark.parametrize("shuffle", [False, True])
def test_shards_keep_the_classes_that_their_labels_are_numbers_of(tmp_path: Path, shuffle: bool) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(CLASSES_SCHEMA)
    (tmp_path / "a.csv").write_text("city,size\nBern,small\nBern,large\n")
    convert(tmp_path / "s", [str(tmp_path / "a.csv")], Options(shards=2, shuffle=shuffle, schema=path))
    data = ht.HDF5Input(str(tmp_path / "s-*.h5"), batch_size=1, features={"city": "city"}, label="size")
    specs = ht.TrainSpec(data, max_steps=1), ht.EvalSpec(data)
    shards = checked_shards(1, specs[0], specs[1:], 1)
    check_schema(shards, specs, read_schema(path))
    path.write_text(CLASSES_SCHEMA.replace("[small, large", "[large, small"))
    with pytest.raises(ht.UserError) as error:
        check_schema(shards, specs, read_schema(path))
    assert str(error.value) == (
        f"{tmp_path}/s-00000.h5: labels 'size' are numbers of the classes 'small', 'large', 'odd\\x1b', but the schema "
        "has 'large', 'small', 'odd\\x1b'; 0 is 'small' there, 'large' here; put the label's vocabulary in the order "
        "of the shards, or write the shards again with this schema"
    )
    path.write_text(CLASSES_SCHEMA.replace(', "odd\\e"', ""))
    with pytest.raises(ht.UserError, match=r"but the schema has 'small', 'large'; put the"):
        check_schema(shards, specs, read_schema(path))
    for kept in ('{"columns": {"size": {}}}', '{"columns": {"size": {"classes": [[]]}}}', "[" * 9999, None):
        for shard in tmp_path.glob("s-*.h5"):
            with h5py.File(shard, "a") as file:
                del file.attrs["hpc_train_schema"]
                file.attrs["hpc_train_schema"] = 1 if kept is None else kept
        check_schema(shards, specs, read_schema(path))
