"""hpc-train shard --split and --columns NEW=OLD: sets by the names of columns, and a fraction of the rows."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.data.sampling.shuffle import Shuffle
from hpc_train.data.sources.split import BY_NAMES, OfSet, files_by_set, rows_of_fraction, set_of
from hpc_train.data.writing.convert import Options, convert
from tests.support import examples
from tests.unit.data.writing.test_writer import joined, shard

IMAGES = np.random.default_rng(0).integers(0, 256, (70, 4, 3)).astype(np.uint8)
LABELS = np.arange(70)
NAMES = {"split": BY_NAMES}
ARRAYS = {"x_train": IMAGES[:60], "y_train": LABELS[:60], "x_test": IMAGES[60:], "y_test": LABELS[60:]}


def refusal(folder: Path, source: str, **options: object) -> str:
    """What is said of a source that cannot be used; nothing is written then."""
    with pytest.raises(UserError) as error:
        convert(
            folder / ("out" if "split" in options else "out/rows"),
            [str(folder / source)],
            Options(**{"shards": 3, **options}),
        )
    assert not (folder / "out").exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("column", "of"),
    [
        ("x_train", OfSet("train", "x")),
        ("X_TEST", OfSet("test", "X")),
        ("test_images", OfSet("test", "images")),
        ("train-labels", OfSet("train", "labels")),
        ("a.validation", OfSet("val", "a")),
        ("val_x", OfSet("val", "x")),
        ("x_training", OfSet("train", "x")),
        ("test_x_train", OfSet("train", "test_x")),
        ("train", None),
        ("_train", None),
        ("trainee", None),
        ("x_trained", None),
        ("xtrain", None),
    ],
)
def test_which_set_a_name_says(column: str, of: OfSet | None) -> None:
    assert set_of(column) == of


@pytest.mark.parametrize("rename", [None, "image=x,label=y", "image=x_train,label=y_train", "label=y_test,image=x"])
def test_arrays_of_several_sets_become_shards_of_each(tmp_path: Path, rename: str | None) -> None:
    np.savez(tmp_path / "m.npz", **ARRAYS)
    options = Options(3, split=BY_NAMES, columns=rename, dtype=["image=int16"] if rename else [])
    train, test = convert(f"{tmp_path}/out/", [str(tmp_path / "m.npz")], options)
    assert (train.rows, len(train.paths), test.rows, len(test.paths)) == (60, 3, 10, 1)
    image, label = ("image", "label") if rename else ("x", "y")
    for name, rows in (("train", slice(60)), ("test", slice(60, 70))):
        found = joined(tmp_path / "out", name)
        assert set(found) == {image, label}
        np.testing.assert_array_equal(found[image], IMAGES[rows])
        assert (found[label].tolist(), found[image].dtype) == (LABELS[rows].tolist(), "int16" if rename else "uint8")
    hidden = sorted(p.name for p in (tmp_path / "out").iterdir() if p.name.startswith("."))
    assert hidden == [".test.plan.json", ".train.plan.json"]


def test_sets_of_files_of_other_kinds(tmp_path: Path) -> None:
    """Compressed ones and those in files of their own, three sets, shuffled: each one has its rows together."""
    np.savez_compressed(tmp_path / "m.npz", train_images=IMAGES[:50], test_images=IMAGES[60:])
    np.save(tmp_path / "v.npy", IMAGES[50:60])
    with h5py.File(tmp_path / "l.h5", "w") as file:
        for name, rows in (("train", slice(50)), ("val", slice(50, 60)), ("test", slice(60, 70))):
            file[f"{name}_labels"] = LABELS[rows]
    sources = [str(tmp_path / "m.npz"), f"validation_images={tmp_path / 'v.npy'}", str(tmp_path / "l.h5")]
    train, val, test = convert(tmp_path / "out", sources, Options(5, split=BY_NAMES, shuffle=True))
    assert [(one.rows, len(one.paths)) for one in (train, val, test)] == [(50, 5), (10, 1), (10, 1)]
    for name, rows in (("train", slice(50)), ("val", slice(50, 60)), ("test", slice(60, 70))):
        found = joined(tmp_path / "out", name)
        assert sorted(found["labels"]) == LABELS[rows].tolist() != found["labels"].tolist()
        np.testing.assert_array_equal(found["images"], IMAGES[found["labels"]])


@settings(max_examples=examples(15))
@given(
    st.integers(2, 200),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_a_fraction_takes_the_same_rows_whatever_else_is_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    fraction: float,
    seed: int,
    shuffle: bool,
    csv: bool,
    shards: int,
) -> None:
    folder = tmp_path_factory.mktemp("split")
    if csv:
        (folder / "s.csv").write_text("a,b\n" + "".join(f"{i},{i * 0.5}\n" for i in range(rows)))
    else:
        np.savez_compressed(folder / "s.npz", a=np.arange(rows), b=np.arange(rows) * 0.5)
    wanted = rows_of_fraction(rows, fraction)
    shards = min(shards, max(wanted, rows - wanted))
    options = Options(shards, split=fraction, seed=seed, shuffle=shuffle)
    convert(folder / "out", [str(folder / ("s.csv" if csv else "s.npz"))], options)
    train, test = joined(folder / "out", "train"), joined(folder / "out", "test")
    order = Shuffle(rows, seed)(np.arange(rows))
    expected = [order[wanted:], order[:wanted]]
    for found, those in zip((train, test), expected, strict=True):
        assert found["a"].tolist() == (those if shuffle else np.sort(those)).tolist()
        assert (found["b"] == found["a"] * 0.5).all()


@settings(max_examples=examples(50))
@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_an_order_tells_where_each_row_is(n: int, seed: int, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5)))
    order = Shuffle(n, seed)
    assert order.places(order(rows)).tolist() == rows.tolist() == order(order.places(rows)).tolist()


def test_how_many_rows_and_files() -> None:
    assert [rows_of_fraction(n, f) for n, f in ((2, 0.01), (2, 0.99), (10, 0.1), (1000, 0.25), (10, 1e-300))] == [
        *(1, 1, 1, 250, 1)
    ]
    with pytest.raises(UserError, match="1 row cannot be for both training and evaluation"):
        rows_of_fraction(1, 0.5)
    assert (files_by_set([60_000, 10_000], 8), files_by_set([90, 10], 8), files_by_set([0, 0], 8)) == (
        *([8, 1], [8, 1]),
        [1, 1],
    )


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        ({}, {}, "x_test has 10 rows, y_test has 10 rows; --split writes train and test apart"),
        *(
            ({}, {"split": text}, f"--split {text}: a fraction is more than 0 and less than 1; give --split alone")
            for text in ("0", "1", "nan", "-0.1", "inf")
        ),
        ({}, {"split": "10%"}, "--split '10%': give --split alone, for columns such as x_train"),
        ({}, {"split": 0.1, "columns": "x_train,y_test"}, "columns of different lengths: x_train has 60 rows"),
        ({}, {**NAMES, "columns": "x_train,x_test"}, "a column is named once for all sets, as in x for x_tr"),
        ({}, {**NAMES, "columns": "z"}, "--columns: nothing gives a column 'z'; the columns are x, y"),
        ({}, {**NAMES, "dtype": ["z=int8"]}, "--dtype: nothing gives a column 'z'; the columns are x, y"),
        ({}, {**NAMES, "shards": 61}, "cannot write 60 rows to 61 shards: between 1 and 60"),
        ({"mean": IMAGES[0]}, NAMES, "the column 'mean' is of no set, as x_train and x_test are"),
        ({"train_x": IMAGES}, NAMES, "m.npz: 'x_train' and 'train_x' are both 'x' of train; rename one"),
        ({"z_train": LABELS[:60]}, NAMES, "train has a column 'z', but test has none; --columns x,y"),
        ({"y_test": LABELS[60:] * 0.5}, NAMES, "'y' is int64 [rows] in train, but float64 [rows] in test"),
        ({"y_test": IMAGES[60:]}, NAMES, "'y' is int64 [rows] in train, but uint8 [rows, 4, 3] in test"),
        ({}, {"columns": "image=x_train,image=y_train"}, "give each name once, with commas between; 'image' is there"),
        ({}, {"columns": "a=x_train,b=x_train"}, "'x_train' is there twice"),
        ({}, {"columns": "image=x_tran"}, "nothing gives a column 'x_tran'; did you mean `x_train`? the columns"),
        ({}, {"columns": "a/b=x_train"}, "column 'a/b': a dataset name is not empty and has no '/'; --columns NEW=OLD"),
        ({}, {"columns": ".=x_train"}, "column '.': a dataset name is not empty"),
        ({}, {"columns": "=x_train"}, "--columns =x_train: give NAME or NEW=OLD each, with commas between"),
        ({}, {"columns": "a="}, "--columns a=: give NAME or NEW=OLD each"),
        ({}, {"columns": f"{'n' * 100_000}=x_train"}, "a dataset name has 60,000 bytes at most"),
        ({"i=x_test": LABELS}, {"columns": "i=x_test"}, "--columns i=x_test: that is the name of a column, too"),
        ({"z_train": LABELS[:60], "z_test": np.float32(1)}, NAMES, "cannot write 'z' (z_test: float32 [] does"),
        ({}, {"columns": "image=x_train", "dtype": ["x_train=int8"]}, "'x_train' is written as 'image'; give --dtype"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, more: dict[str, np.ndarray], options: dict[str, object], said: str) -> None:
    np.savez(tmp_path / "m.npz", **{**ARRAYS, **more})
    message = refusal(tmp_path, "m.npz", **options)
    assert said in message
    assert len(message) < 1000


def test_sources_that_cannot_be_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=LABELS[:1])
    np.savez(tmp_path / "half.npz", x_train=IMAGES, y_train=LABELS)
    assert "1 row cannot be for both training and evaluation" in refusal(tmp_path, "one.npz", split=0.5)
    assert "do not tell two sets apart (none says so): x. Names such" in refusal(tmp_path, "one.npz", split=BY_NAMES)
    assert "(all of them are of train): x_train, y_train" in refusal(tmp_path, "half.npz", split=BY_NAMES)


def test_columns_are_renamed_after_stacking_and_swapped(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("p0,p1,a,b\n1,2,3,4\n5,6,7,8\n")
    options = Options(1, columns="x=p,b=a,a=b", stack=["p=p0..p1"], dtype=["x=uint8", "a=float32"])
    convert(tmp_path / "o", [str(tmp_path / "s.csv")], options)
    found = joined(tmp_path, "o")
    assert {name: (str(array.dtype), array.tolist()) for name, array in found.items()} == {
        "x": ("uint8", [[1, 2], [5, 6]]),
        "a": ("float32", [4, 8]),
        "b": ("int64", [3, 7]),
    }


def test_the_command_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **ARRAYS)
    done = shard(tmp_path, "data/", "--split", "m.npz", "--columns", "image=x,label=y", "--shards", "6")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "60 rows of image, label in 6 files: data/train-00000.h5 … train-00005.h5",
        "10 rows of image, label in 1 file: data/test-00000.h5",
    ]
    done = shard(tmp_path, "more", "m.npz", "--columns", "x_train", "--split", "0.05", "--shards", "2")
    assert done.stdout.splitlines()[1] == "3 rows of x_train in 1 file: more/test-00000.h5", done.stderr
    done = shard(tmp_path, "data/train", "--split", "--", "m.npz")
    assert done.returncode == 2
    assert "PREFIX data/train: --split names the files itself, train-00000.h5 and so on; give the folder" in done.stderr
