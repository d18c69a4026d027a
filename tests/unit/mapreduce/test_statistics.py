"""Statistics of shards are numpy's; the command shows them, writes them, and refuses what is no data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import hpc_train as ht
from hpc_train.cli.app import app
from hpc_train.data.ragged import Ragged
from hpc_train.errors import UserError
from hpc_train.report.statistics import statistics_page

ROWS = 3000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards with columns of all kinds."""
    made, chance = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    for number in range(2):
        with h5py.File(made / f"train-{number}.h5", "w") as file:
            x = chance.normal(size=ROWS).astype(np.float32)
            x[:5], x[5:8] = np.nan, np.inf
            file["x"] = x
            file["image"] = chance.integers(0, 255, (ROWS, 4, 3)).astype(np.uint8)
            file["many"] = chance.integers(0, 10**6, ROWS)
            file["flag"] = chance.random(ROWS) < 0.25
            file["wave"] = np.ones((ROWS, 2), np.complex64)
            file.create_dataset("fixed", data=chance.choice(np.array([b"a", b"bcd"]), ROWS))
            texts = chance.choice(np.array(["<b>", "ü\x1b[1m", ""], object), ROWS)
            file.create_dataset("text", data=texts, dtype=h5py.string_dtype())
            lengths = chance.integers(0, 5, ROWS)
            rows = np.empty(ROWS, object)
            rows[:] = [np.arange(n, dtype=np.int32) for n in lengths]
            file.create_dataset("list", data=rows, dtype=h5py.vlen_dtype(np.int32))
    return made


def column(folder: Path, name: str) -> np.ndarray:
    parts = []
    for number in range(2):
        with h5py.File(folder / f"train-{number}.h5") as file:
            parts.append(file[name][:])
    return np.concatenate(parts)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["stats", *words])


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    done = run(str(folder / "train-*.h5"), "--json")
    assert done.exit_code == 0, done.output
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_numbers(folder: Path, found: dict[str, Any]) -> None:
    assert (found["rows"], found["files"]) == (2 * ROWS, 2)
    x = column(folder, "x")
    finite = x[np.isfinite(x)].astype(np.float64)
    ours = found["columns"]["x"]
    assert (ours["dtype"], ours["shape"], ours["values"]) == ("float32", [], 2 * ROWS)
    assert (ours["missing"], ours["infinite"]) == (10, 6)
    assert ours["mean"] == pytest.approx(finite.mean(), rel=1e-12)
    assert ours["std"] == pytest.approx(finite.std(), rel=1e-12)
    assert (ours["min"], ours["max"]) == (finite.min(), finite.max())
    for probability, value in ours["quantiles"].items():
        assert (finite <= value).mean() == pytest.approx(float(probability), abs=ours["quantile_error"] + 1e-3)
    assert sum(ours["histogram"]["counts"]) == len(finite)
    assert "top" not in ours
    image = found["columns"]["image"]
    assert (image["shape"], image["values"], image["distinct"]) == ([4, 3], 24 * ROWS, 255)
    values, counts = np.unique(column(folder, "image"), return_counts=True)
    assert image["top"][0] == [int(values[counts.argmax()]), int(counts.max())]
    assert found["columns"]["many"]["distinct"] is None
    assert found["columns"]["flag"]["top"][0] == [0, int((~column(folder, "flag")).sum())]
    assert found["columns"]["wave"] == {"dtype": "complex64", "shape": [2], "values": 4 * ROWS}


def test_texts_and_rows_of_different_lengths(folder: Path, found: dict[str, Any]) -> None:
    text = found["columns"]["text"]
    assert (text["dtype"], text["distinct"], text["values"]) == ("text", 3, 2 * ROWS)
    assert {value for value, _ in text["top"]} == {"<b>", "ü\x1b[1m", ""}
    assert (text["lengths"]["min"], text["lengths"]["max"]) == (0, len("ü\x1b[1m".encode()))
    fixed = found["columns"]["fixed"]
    assert dict(fixed["top"]) == {name: (column(folder, "fixed") == name.encode()).sum() for name in ("a", "bcd")}
    assert (fixed["lengths"]["min"], fixed["lengths"]["max"]) == (1, 3)
    numbers = column(folder, "list")
    ours = found["columns"]["list"]
    assert ours["shape"] == [None]
    assert ours["values"] == sum(map(len, numbers))
    assert ours["mean"] == pytest.approx(np.concatenate(numbers).mean())
    assert ours["lengths"]["mean"] == pytest.approx(np.mean([len(row) for row in numbers]))


def test_the_terminal_the_page_and_the_files_of_a_job(folder: Path, found: dict[str, Any], tmp_path: Path) -> None:
    done = run(str(folder / "train-*.h5"), "--job-dir", str(tmp_path), "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    assert "6000 rows in 2 files" in done.stdout
    assert r"ü\x1b[1m" in done.stdout and "\x1b[1m" not in done.stdout
    assert json.loads((tmp_path / "stats.json").read_text()) == found
    page = (tmp_path / "page.html").read_text()
    assert page.isascii() and "<b>" not in page and "&lt;b&gt;" in page
    assert page.count("<figure>") == 8, "x, image, many, flag, list; lengths of list, fixed, text"
    assert "complex64" in page


def test_a_page_of_columns_without_numbers() -> None:
    bare = {"rows": 1, "files": 1, "columns": {"z": {"dtype": "complex64", "shape": [], "values": 1}}}
    page = statistics_page(bare, ["<x>.h5"])
    assert "1 row in 1 file" in page and "&lt;x&gt;" in page and "Histograms" not in page


def test_what_cannot_be_done_is_refused(folder: Path, tmp_path: Path) -> None:
    shards = str(folder / "train-*.h5")
    for words, said in (
        ((str(tmp_path / "no-*.h5"),), "matches no file"),
        ((shards, "--columns", "imgae"), "has no dataset 'imgae'; did you mean `image`"),
        ((shards, "--html", str(tmp_path / "no" / "page.html")), f"--html: {tmp_path}/no: no such folder"),
        ((shards, "--job-dir", str(tmp_path / "no")), f"--job-dir: {tmp_path}/no: no such folder"),
        ((shards, "--html", str(tmp_path)), "cannot be written"),
        ((shards, "--columns", ","), "--columns: give names of datasets"),
    ):
        done = run(*words)
        assert done.exit_code == 2 and said in done.stderr, done.output


def test_map_fn_gets_plain_arrays(folder: Path) -> None:
    seen: dict[str, Any] = {}

    def count(rows: dict[str, np.ndarray]) -> Any:
        seen.update({name: (values.dtype, values.shape[1:], values[-1]) for name, values in rows.items()})
        return np.ones(len(rows["x"]), int)

    names = ("x", "image", "text", "fixed", "list")
    source = ht.HDF5Input(str(folder / "train-*.h5"), features=names, label="flag")
    assert ht.map_reduce(count, ht.reducers.Sum(), source) == 2 * ROWS
    assert list(seen) == [*names, "flag"]
    assert seen["image"][:2] == (np.uint8, (4, 3))
    assert isinstance(seen["text"][2], str) and isinstance(seen["fixed"][2], str)
    assert isinstance(seen["list"][2], np.ndarray) and not isinstance(seen["list"], Ragged)
    words = ht.map_reduce(None, ht.reducers.Vocabulary(), ht.HDF5Input(source.shards, features="text", label=()))
    assert words["counts"].sum() == 2 * ROWS


@pytest.mark.parametrize(
    ("map_fn", "reducer", "source", "said"),
    [
        (
            None,
            ht.reducers.Mean(),
            "train.h5",
            r"source: 'train\.h5' is not allowed; allowed: ht\.HDF5In",
        ),
        (3, ht.reducers.Mean(), None, "map_fn: 3 is not allowed; allowed: a function of the rows"),
        (None, np.mean, None, r"is not allowed; allowed: one of ht\.reducers"),
        (None, {}, None, r"reducer: \{\} is not allowed"),
        (None, {"x": 3}, None, r"reducer: \{'x': 3\} is not allowed"),
        (None, ht.reducers.Mean(), None, "one reducer is for one column, but the input has x, flag"),
        (None, {"x": ht.reducers.Mean()}, None, r"reducers for \['x'\], but .* the input, gives \['flag', 'x'\]"),
        (None, {1: ht.reducers.Mean()}, None, "allowed: one of ht"),
    ],
)
def test_arguments_of_map_reduce(folder: Path, map_fn: Any, reducer: Any, source: Any, said: str) -> None:
    source = source or ht.HDF5Input(str(folder / "train-*.h5"), features="x", label="flag")
    with pytest.raises(UserError, match=said):
        ht.map_reduce(map_fn, reducer, source)
    with pytest.raises(UserError, match="its map_fn is for batches of TensorFlow"):
        ht.map_reduce(None, ht.reducers.Mean(), ht.HDF5Input("x.h5", map_fn=lambda x, y: (x, y)))


class Unsendable(ht.reducers.Reducer[Any]):
    """A reducer of a user's own whose state is no data."""

    def init(self) -> Any:
        return {"seen": set()}

    def add(self, state: Any, values: Any) -> Any:
        return state

    def merge(self, first: Any, second: Any) -> Any:
        return first

    def result(self, state: Any) -> Any:
        return state


def test_states_that_cannot_be_sent_are_refused_with_the_first_block(folder: Path) -> None:
    source = ht.HDF5Input(str(folder / "train-*.h5"), features="x", label=())
    with pytest.raises(UserError, match=r"a reducer's state has a set at \['seen'\]; a state is made of arrays"):
        ht.map_reduce(None, Unsendable(), source)


def test_a_block_is_small_whatever_the_chunks_are_and_damage_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image"] = np.zeros((12_000, 4096), np.uint8)
        file.create_dataset("label", data=np.arange(12_000), chunks=(4000,), compression="gzip")
    seen: list[int] = []

    def count(rows: dict[str, np.ndarray]) -> Any:
        seen.append(len(rows["image"]))
        return rows["label"]

    source = ht.HDF5Input(str(tmp_path / "a.h5"), features="image", label="label")
    assert ht.map_reduce(count, ht.reducers.Sum(), source) == 12_000 * 11_999 // 2
    assert max(seen) * 4104 <= 8 << 20 and sum(seen) == 12_000
    with h5py.File(tmp_path / "a.h5") as file:
        where = file["label"].id.get_chunk_info(1).byte_offset
    with open(tmp_path / "a.h5", "r+b") as raw:
        raw.seek(where)
        raw.write(b"\xff" * 64)
    done = run(str(tmp_path / "a.h5"))
    assert done.exit_code == 2 and "Traceback" not in done.output
    assert "a.h5: dataset 'label'" in done.stderr and "write the shard anew" in done.stderr


def test_very_large_numbers_have_no_chart_and_all_else(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.array([1e308, -1e308] * 50)
    done = run(str(tmp_path / "a.h5"), "--html", str(tmp_path / "x.json"))
    assert done.exit_code == 0, done.output
    assert "100 rows" in done.stdout and "<figure>" not in (tmp_path / "x.json").read_text()


def test_the_one_who_asks_for_another_name_is_helped() -> None:
    with pytest.raises(AttributeError, match="did you mean `map_reduce`"):
        ht.mapreduce_  # noqa: B018
