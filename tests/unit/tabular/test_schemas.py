"""Schemas: what columns are found to be, on one rank; that it is the same on more is tests/parallel/test_tables.py."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_train.config.row_split import RowSplit
from hpc_train.config.table import Table
from hpc_train.config.table_schema import ColumnSchema, TableSchema, read_schema
from hpc_train.data.tables.hashes import hashes_of
from hpc_train.data.writing.convert import Options, convert
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.mapreduce.distinct import Distinct
from hpc_train.mapreduce.vocabulary import arrow_of
from hpc_train.tabular.inference import infer_schema

ROWS = 400


def write(path: Path, columns: dict[str, list[object]]) -> Path:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def columns() -> dict[str, list[object]]:
    chance = np.random.default_rng(0)
    label = chance.choice(["good", "bad"], ROWS).tolist()
    return {
        "customer_id": chance.permutation(ROWS * 3)[:ROWS].tolist(),
        "row": list(range(ROWS)),
        "age": [("" if k % 9 == 0 else int(v)) for k, v in enumerate(chance.integers(18, 90, ROWS))],
        "rooms": chance.integers(1, 6, ROWS).tolist(),
        "weight": np.round(chance.normal(70, 9, ROWS), 3).tolist(),
        "zip": [f"{v:05d}" for v in chance.integers(0, 30, ROWS)],
        "city": chance.choice(["Bern", "Zürich", "NA"], ROWS).tolist(),
        "note": [" ".join(chance.choice(["Very", "good", "bad!", "ware"], 4)) + f" {k}" for k in range(ROWS)],
        "token": [f"t{v}" for v in range(ROWS)],
        "member": chance.choice(["yes", "no"], ROWS).tolist(),
        "born": [f"{1950 + k % 50}-03-0{1 + k % 9}" for k in range(ROWS)],
        "sold": [f"{1 + k % 12}/{1 + k % 11}/2024" for k in range(ROWS)],
        "paid": [f"{1 + k % 28}.{1 + k % 12}.2024" for k in range(ROWS)],
        "amount": ["?" if k == 3 else ("abc" if k == 7 else k / 4) for k in range(ROWS)],
        "same": ["x"] * ROWS,
        "none": [""] * ROWS,
        "copy": label,
        "code": [7 if value == "good" else 3 for value in label],
        "branch": ["north" if value == "good" else f"s{k % 3}" for k, value in enumerate(label)],
        "label": label,
    }


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> TableSchema:
    path = write(tmp_path_factory.mktemp("table") / "a.csv", columns())
    found = infer_schema(World.alone(), Table(files=str(path)), "label")
    written = path.with_name("schema.yaml")
    written.write_text(found.to_yaml())
    assert read_schema(written) == found
    return found


def test_types_roles_and_remarks(schema: TableSchema) -> None:
    found = {name: (column.type, column.role) for name, column in schema.columns.items()}
    assert found == {
        "customer_id": ("integer", "id"),
        "row": ("integer", "id"),
        "age": ("integer", "numeric"),
        "rooms": ("integer", "numeric"),
        "weight": ("number", "numeric"),
        "zip": ("text", "categorical"),
        "city": ("text", "categorical"),
        "note": ("text", "text"),
        "token": ("text", "id"),
        "member": ("boolean", "numeric"),
        "born": ("date", "date"),
        "sold": ("text", "categorical"),
        "paid": ("date", "date"),
        "amount": ("text", "id"),
        "same": ("text", "ignored"),
        "none": ("text", "ignored"),
        "copy": ("text", "ignored"),
        "code": ("integer", "ignored"),
        "branch": ("text", "categorical"),
        "label": ("text", "label"),
    }
    remarks = {name: " ".join(column.remarks) for name, column in schema.columns.items()}
    for name, text in {
        "customer_id": "each row has a number of its own",
        "row": "whole numbers that count the rows",
        "rooms": "whole numbers with 5 different values",
        "zip": "zeros in front",
        "token": "nearly each row has a text of its own",
        "sold": "day and month cannot be told apart: give type: date, role: date and format: '%d/%m/%Y' or '%m/%d/%Y'",
        "amount": "numbers, but for 1 of 399 values, and so taken for texts; the first is 'abc' in ",
        "same": "is 'x' in all rows",
        "none": "has no values",
        "copy": "equals the label 'label'",
        "code": "one to one",
        "branch": "each of its values goes with one 'label': a leak?",
    }.items():
        assert text in remarks[name], name
    assert "line 9" in remarks["amount"]
    assert not remarks["age"] and not remarks["weight"] and not remarks["label"]
    assert (schema.task, schema.label, schema.classes, schema.rows) == ("binary", "label", ("bad", "good"), ROWS)
    assert schema.columns["paid"].format == "%d.%m.%Y" and schema.columns["born"].format is None
    assert schema.columns["rooms"].vocabulary and set(schema.columns["rooms"].vocabulary) == {1, 2, 3, 4, 5}


def test_statistics_are_numpys(schema: TableSchema) -> None:
    given = columns()
    for name in ("age", "weight"):
        values = np.array([value for value in given[name] if value != ""], float)
        about = schema.columns[name].statistics
        assert about is not None and (about.count, about.missing) == (len(values), ROWS - len(values))
        assert math.isclose(about.mean or 0, values.mean(), rel_tol=1e-12)
        assert math.isclose(about.std or 0, values.std(), rel_tol=1e-12)
        assert (about.min, about.max) == (values.min(), values.max())
        in_order = np.sort(values)
        low, high = (np.searchsorted(in_order, about.quantiles, side) / len(values) for side in ("left", "right"))
        ranks = np.clip(np.arange(1, 10) / 10, low, high)
        np.testing.assert_allclose(ranks, np.arange(1, 10) / 10, atol=0.006)
    cities = [value for value in given["city"] if value != "NA"]
    city = schema.columns["city"]
    assert list(city.vocabulary) == sorted(set(cities), key=lambda value: (-cities.count(value), value))
    assert city.statistics is not None and city.statistics.missing == ROWS - len(cities)
    words = " ".join(map(str, given["note"])).lower().replace("!", "").split()
    note = schema.columns["note"]
    assert set(note.vocabulary[:4]) == {"very", "good", "bad", "ware"}
    assert len(words) == 5 * ROWS
    assert note.statistics is not None and note.statistics.mean_words == 5


def test_vocabularies_are_bounded(tmp_path: Path) -> None:
    values = [f"v{k % 50}" for k in range(ROWS)]
    path = write(tmp_path / "a.csv", {"x": values, "y": list(range(ROWS))})
    found = infer_schema(World.alone(), Table(files=str(path)), most_values=10).columns["x"]
    assert len(found.vocabulary) == 10 and found.out_of_vocabulary == ROWS - 10 * 8
    assert "50 different values, of which the 10 most frequent are kept" in found.remarks[0]


def test_a_split_counts_the_rows_that_shards_for_training_have(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", columns())
    schema = infer_schema(World.alone(), Table(files=str(path)), "label", split=RowSplit(fraction=0.25, seed=3))
    (tmp_path / "schema.yaml").write_text(schema.to_yaml())
    train, test = convert(
        tmp_path / "data", [str(path)], Options(schema=tmp_path / "schema.yaml", split="0.25", seed=3, shards=2)
    )
    assert (train.rows, test.rows) == (schema.rows, ROWS - (schema.rows or 0)) == (300, 100)
    found: dict[str, list[np.ndarray]] = {"age": [], "weight": [], "label": [], "paid": []}
    for shard in train.paths:
        with h5py.File(shard) as file:
            assert set(file) == set(schema.features) | {"label"}
            for name, parts in found.items():
                parts.append(file[name][:])
    joined = {name: np.concatenate(parts) for name, parts in found.items()}
    for name in ("age", "weight", "paid"):
        about = schema.columns[name].statistics
        assert about is not None and about.missing == np.isnan(joined[name]).sum()
        assert math.isclose(about.mean or 0, np.nanmean(joined[name]), rel_tol=1e-12)
    assert joined["label"].dtype == np.int64 and set(joined["label"].tolist()) == {0, 1}
    label = schema.columns["label"].statistics
    assert label is not None and label.count == 300
    (tmp_path / "schema.yaml").write_text(schema.to_yaml().replace("mean:", "mean: 1e-3 #"))
    options = Options(schema=tmp_path / "schema.yaml", split="0.25", seed=3, shards=2)
    with pytest.raises(UserError, match="from another command: --schema was"):
        convert(tmp_path / "data", [str(path)], options)


def test_rows_without_a_label_count_nowhere_and_a_split_is_that_of_shards(tmp_path: Path) -> None:
    """`x` numbers the rows, so the shards show which of them are for training."""
    labels = ["" if k % 11 == 0 else "ab"[k % 2] for k in range(1000)]
    path = write(tmp_path / "a.csv", {"x": [k + 0.5 for k in range(1000)], "y": labels})
    schema = infer_schema(World.alone(), Table(files=str(path)), "y", split=RowSplit(fraction=0.1, seed=0))
    label = schema.columns["y"]
    assert label.statistics is not None and label.statistics.missing == 91
    assert "missing in 91 rows" in label.remarks[0]
    columns = {**schema.columns, "y": label.model_copy(update={"missing": "drop"})}
    (tmp_path / "schema.yaml").write_text(schema.model_copy(update={"columns": columns}).to_yaml())
    train, _ = convert(tmp_path / "data", [str(path)], Options(schema=tmp_path / "schema.yaml", split="0.1", shards=1))
    with h5py.File(train.paths[0]) as file:
        rows = file["x"][:]
    about = schema.columns["x"].statistics
    assert about is not None and (about.count, schema.rows) == (len(rows), len(rows))
    assert math.isclose(about.mean or 0, rows.mean(), rel_tol=1e-12) and about.max == rows.max()


def test_all_classes_are_kept_whatever_bounds_vocabularies(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"x": [f"v{k % 9}" for k in range(90)], "y": [f"c{k % 5}" for k in range(90)]})
    found = infer_schema(World.alone(), Table(files=str(path)), "y", most_values=2)
    assert found.classes == ("c0", "c1", "c2", "c3", "c4") and len(found.columns["x"].vocabulary) == 2


def test_whole_numbers_written_with_fractions_may_be_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"x": list(range(40)), "y": ["1.0", "0.0", ""] * 13 + ["1.0"]})
    found = infer_schema(World.alone(), Table(files=str(path)), "y")
    assert (found.task, found.classes, found.rows) == ("binary", (0, 1), 27)


def test_columns_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"p/q": list(range(30)), "inf": ["inf", "-inf"] * 15, "y": ["a", "b"] * 15})
    found = infer_schema(World.alone(), Table(files=str(path)), "y").columns
    assert found["p/q"].role == found["inf"].role == "ignored"
    assert "rename it in the table's files" in found["p/q"].remarks[-1]
    assert found["inf"].remarks == ("has no finite values",)
    with pytest.raises(UserError, match="the label 'p/q' cannot be a dataset; rename it"):
        infer_schema(World.alone(), Table(files=str(path)), "p/q")
    with pytest.raises(UserError, match="the label 'inf' has no finite values"):
        infer_schema(World.alone(), Table(files=str(path)), "inf")


def test_a_rare_flag_is_no_leak(tmp_path: Path) -> None:
    flag = ["" for _ in range(200)]
    flag[1] = flag[3] = "1"
    path = write(tmp_path / "a.csv", {"flag": flag, "y": [k % 2 for k in range(200)]})
    assert infer_schema(World.alone(), Table(files=str(path)), "y").columns["flag"].role == "numeric"


LABELS = {
    "one class": (["a"] * 30, {}, "the label 'y' is 'a' in all rows that have one: there is nothing to learn"),
    "no values": ([""] * 30, {}, "the label 'y' has no values"),
    "dates": (["2024-01-02", "2024-01-03"] * 15, {}, "is of type date; a label is a class or a number"),
    "texts": ([f"t{k}" for k in range(1100)], {}, "has 1,100 different values; allowed: 1,000 classes at most"),
    "numbers of texts": (["a", "b"] * 15, {"task": "regression"}, "--task regression: the label 'y' is of type text"),
    "negative": ([-1, 2] * 15, {"task": "counts"}, "--task counts: the label 'y' has values below 0, such as -1"),
    "counts with fractions": ([0.5, 2] * 15, {"task": "counts"}, "--task counts: the label 'y' has numbers with fr"),
    "fractions": ([1.5, 2] * 15, {"task": "binary"}, "--task binary: the label 'y' has numbers with fractions"),
    "three": (["a", "b", "c"] * 10, {"task": "binary"}, "--task binary: the label 'y' has 3 different values"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_which_nothing_can_be_learnt(kind: str, tmp_path: Path) -> None:
    values, more, text = LABELS[kind]
    path = write(tmp_path / "a.csv", {"x": list(range(len(values))), "y": list(values)})
    with pytest.raises(UserError, match=text.replace("-", ".")):
        infer_schema(World.alone(), Table(files=str(path)), "y", **more)
    with pytest.raises(UserError, match=r"--label z: .*a\.csv has no such column"):
        infer_schema(World.alone(), Table(files=str(path)), "z")
    with pytest.raises(UserError, match="--label y: --columns leaves it out; name it there, too"):
        infer_schema(World.alone(), Table(files=str(path), columns=("x",)), "y")


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["a", "b"], "binary"),
        (["a", "b", "c"], "classes"),
        ([0, 1], "binary"),
        ([0, 1, 2], "classes"),
        (list(range(40)), "regression"),
        ([0.5, 1], "regression"),
        (["true", "false"], "binary"),
    ],
)
def test_tasks(values: list[object], task: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"x": list(range(40)), "y": (values * 40)[:40]})
    found = infer_schema(World.alone(), Table(files=str(path)), "y")
    assert found.task == task
    assert found.classes == (
        tuple(sorted(values)) if task in ("binary", "classes") and "true" not in values else found.classes
    )


SCHEMA = {
    "a": ColumnSchema(type="integer", role="numeric"),
    "b": ColumnSchema(type="text", role="categorical", vocabulary=("u", "v")),
    "y": ColumnSchema(type="text", role="label", vocabulary=("no", "yes")),
}


@pytest.mark.parametrize(
    ("content", "changes", "text"),
    [
        ("a,b,y\n1,u,no\n2,v,\n", {}, "line 3: column 'y' has no value; mend it, or give `missing: drop`"),
        (
            "a,b,y\n1,u,no\n2,v,maybe\n",
            {},
            r"line 3: column 'y' has 'maybe', which is no class of the schema \(no, yes\)",
        ),
        ("a,b,y\n1,u,no\nx,v,yes\n", {}, "line 3: column 'a' has 'x', not a whole number"),
        ("a,y\n1,no\n", {}, "has no column 'b', which the schema uses"),
        ("a,b,y\n1,u,no\n,v,yes\n", {"a": {"missing": "refuse"}}, "line 3: column 'a' has no value"),
        ("a,b,y\n1,u,no\n1,,yes\n", {"b": {"missing": "refuse"}}, "line 3: column 'b' has no value"),
    ],
)
def test_a_table_that_does_not_fit_its_schema(content: str, changes: dict, text: str, tmp_path: Path) -> None:
    columns = {name: column.model_copy(update=changes.get(name, {})) for name, column in SCHEMA.items()}
    (tmp_path / "schema.yaml").write_text(TableSchema(task="binary", columns=columns).to_yaml())
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=text):
        convert(tmp_path / "s", [str(tmp_path / "a.csv")], Options(schema=tmp_path / "schema.yaml", shards=1))
    assert not list(tmp_path.glob("s-*.h5"))


def test_rows_without_a_label_are_dropped_where_that_is_asked_for(tmp_path: Path) -> None:
    columns = {**SCHEMA, "y": SCHEMA["y"].model_copy(update={"missing": "drop"})}
    (tmp_path / "schema.yaml").write_text(TableSchema(task="binary", columns=columns).to_yaml())
    (tmp_path / "a.csv").write_text("y,b,extra,a\nno,u,1,1\n?,v,1,2\nyes,,1,3\nyes,w,1,\n")
    [done] = convert(tmp_path / "s", [str(tmp_path / "a.csv")], Options(schema=tmp_path / "schema.yaml", shards=1))
    assert done.rows == 3
    with h5py.File(done.paths[0]) as file:
        assert file["y"][:].tolist() == [0, 1, 1]
        np.testing.assert_array_equal(file["a"][:], [1, 3, np.nan])


def test_options_that_a_schema_excludes(tmp_path: Path) -> None:
    for name, value in {"columns": "a", "dtype": ["a=int8"], "stack": ["x=a,b"], "header": False}.items():
        with pytest.raises(UserError, match=f"--{name}: with --schema"):
            Options(schema=tmp_path / "schema.yaml", **{name: value})


def test_distinct_is_exact_for_few_and_near_for_many() -> None:
    few, many = Distinct(), Distinct()
    state = few.init()
    for k in range(10):
        state = few.add(state, hashes_of(arrow_of(np.arange(k * 100, k * 100 + 300))[0]))
    assert few.result(state) == 1200
    state = many.init()
    for k in range(10):
        texts = np.array([f"x{v}" for v in range(k * 10_000, (k + 2) * 10_000)], object)
        state = many.merge(state, many.add(many.init(), hashes_of(arrow_of(texts)[0])))
    assert abs(many.result(state) / 110_000 - 1) < 0.06
    words = np.array(["", "a", "b", "aa", "ab", "ba"], object)
    assert len(set(hashes_of(arrow_of(words)[0]).tolist())) == 6
