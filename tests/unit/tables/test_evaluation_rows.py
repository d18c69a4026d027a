"""Which rows are to evaluate with: by chance, by the values of a column, by time; the same for schema and shards."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hpc_train.config.row_split import RowSplit, date_of, seconds_of
from hpc_train.config.table import Table
from hpc_train.config.table_schema import TableSchema, read_schema
from hpc_train.data.ragged import Ragged
from hpc_train.data.sources.arrow import texts_of_arrow
from hpc_train.data.tables.evaluation_rows import NoTimeError, by_value
from hpc_train.data.writing.convert import Options, Written, convert
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.tabular.inference import infer_schema

ROWS = 600


def texts(values: Sequence[str]) -> Ragged:
    return texts_of_arrow(pa.array(values, pa.large_string()))


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_a_fraction_of_the_values_is_to_evaluate_with(seed: int) -> None:
    split = RowSplit(fraction=0.2, seed=seed, by="x")
    for values in (texts([f"customer {k}" for k in range(20_000)]), np.arange(20_000) / 4):
        chosen = by_value(split, values)
        assert 0.18 < chosen.mean() < 0.22
        assert (chosen != by_value(split.model_copy(update={"seed": seed + 1}), values)).mean() > 0.2
        assert (by_value(split.model_copy(update={"fraction": 0.3}), values) >= chosen).all()


def test_equal_values_are_on_one_side() -> None:
    split = RowSplit(fraction=0.5, by="x")
    odd = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, 5.0] * 3)
    chosen = by_value(split, odd)
    assert chosen[0] == chosen[1] and chosen[2] == chosen[3]
    assert (chosen[:6] == chosen[6:12]).all()
    words = by_value(split, texts(["", "é", "é", ""]))
    assert words[0] == words[3] and words[1] == words[2]


def test_a_time_without_a_value_is_refused_by_its_row() -> None:
    with pytest.raises(NoTimeError) as refused:
        by_value(RowSplit(fraction=0.5, time="x", after=1), np.array([1.0, 2.0, np.nan]))
    assert refused.value.row == 2


@pytest.mark.parametrize("text", ["2024-05-01", "1969-12-31", "2024-05-01T10:20:30", "2024-05-01T10:20:30.250000"])
def test_dates_are_read_as_they_were_written(text: str) -> None:
    assert date_of(seconds_of(text)) == text


def table(path: Path) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "who", "sold", "size", "y"])
        for k in range(ROWS):
            who = "" if k % 50 == 0 else f"Käufer {k * 7 % 90}"
            writer.writerow([k, who, f"2024-{1 + k * 12 // ROWS:02d}-01", k + 0.5, "" if k % 40 == 0 else "ab"[k % 2]])
    return path


def made(folder: Path, path: Path, split: RowSplit, **options: Any) -> tuple[TableSchema, Written, Written]:
    """The schema of the table with this split, and the shards made by it; `y` may be missing."""
    folder.mkdir()
    found = infer_schema(World.alone(), Table(files=str(path)), "y", split=split)
    columns = {**found.columns, "y": found.columns["y"].model_copy(update={"missing": "drop"})}
    (folder / "schema.yaml").write_text(found.model_copy(update={"columns": columns}).to_yaml())
    schema = read_schema(folder / "schema.yaml")
    chosen = Options(schema=folder / "schema.yaml", split="by names", shards=2, **options)
    train, test = convert(folder, [str(path)], chosen)
    return schema, train, test


def rows_in(written: Written) -> np.ndarray:
    """The numbers of the rows in the table, which `size` shows."""
    found = []
    for shard in written.paths:
        with h5py.File(shard) as file:
            found.append(file["size"][:] - 0.5)
    return np.concatenate(found).astype(int)


LABELLED = np.array([k for k in range(ROWS) if k % 40])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_schema_and_shards_have_the_same_rows(kind: str, shuffle: bool, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    if kind == "parquet":
        pyarrow.parquet.write_table(pa.csv.read_csv(path), tmp_path / "a.parquet", row_group_size=100)
        path = tmp_path / "a.parquet"
    for number, split in enumerate(
        (RowSplit(fraction=0.2, seed=3), RowSplit(fraction=0.3, by="who"), RowSplit(fraction=0.25, time="sold"))
    ):
        schema, train, test = made(tmp_path / str(number), path, split, shuffle=shuffle)
        mine, others = rows_in(train), rows_in(test)
        assert sorted([*mine, *others]) == LABELLED.tolist()
        assert (schema.rows, schema.columns["row"].statistics.max) == (len(mine), mine.max())  # type: ignore[union-attr]
        if split.by is not None:
            people = [{"" if k % 50 == 0 else k * 7 % 90 for k in rows} for rows in (mine, others)]
            assert not people[0] & people[1]
            assert 0.15 < len(people[1]) / 91 < 0.45
            assert schema.columns["who"].role == "ignored"
            assert "decides which rows are to evaluate with" in schema.columns["who"].remarks[-1]
        if split.time is not None:
            assert schema.split is not None and schema.split.after == "2024-09-01"
            assert mine.max() < 450 <= others.min()
            assert schema.columns["sold"].role == "date"


def test_the_order_of_a_shuffle_is_the_seeds(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    split = RowSplit(fraction=0.25, time="sold")
    orders = [rows_in(made(tmp_path / str(seed), path, split, shuffle=True, seed=seed)[1]) for seed in (1, 2)]
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0].tolist() != orders[1].tolist()


def test_another_split_than_the_schemas_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    schema = tmp_path / "0" / "schema.yaml"
    made(tmp_path / "0", path, RowSplit(fraction=0.2, seed=3))
    for options in ({"split": "0.2"}, {"split": "0.3", "seed": 3}, {"split": "by names", "seed": 4}):
        with pytest.raises(UserError, match="other rows are to evaluate with"):
            convert(tmp_path / "b", [str(path)], Options(schema=schema, **options))  # type: ignore[arg-type]
    for options in ({"split": "0.2", "seed": 3}, {"split": "by names", "seed": 3}):
        again = convert(tmp_path / str(options["split"]), [str(path)], Options(schema=schema, **options))  # type: ignore[arg-type]
        assert [written.rows for written in again] == [468, 117]
    whole = convert(tmp_path / "whole", [str(path)], Options(schema=schema))
    assert whole[0].rows == len(LABELLED)
    made(tmp_path / "1", path, RowSplit(fraction=0.2, by="who"))
    with pytest.raises(UserError, match="other rows are to evaluate with"):
        convert(tmp_path / "c", [str(path)], Options(schema=tmp_path / "1" / "schema.yaml", split="0.2"))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (RowSplit(fraction=0.2, by="whom"), "--split-by whom: there is no such column; did you mean `who`?"),
        (RowSplit(fraction=0.2, by="y"), "--split-by y: that is the label"),
        (RowSplit(fraction=0.2, time="who"), "--time who: its values are of type text"),
        (RowSplit(fraction=0.001, by="size", seed=9), "'size' leaves no rows for evaluation; give a larger --split"),
        (RowSplit(fraction=0.01, time="sold"), "'sold' leaves no rows for evaluation; give a larger --split"),
    ],
)
def test_a_split_that_cannot_be_is_refused_in_one_sentence(split: RowSplit, expected: str, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    with pytest.raises(UserError) as refused:
        infer_schema(World.alone(), Table(files=str(path)), "y", split=split)
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_a_row_without_a_time_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,x,y\n1,2,a\n,3,b\n3,4,a\n")
    split = RowSplit(fraction=0.4, time="t")
    with pytest.raises(UserError, match=r"a\.csv: line 3: column 't' has no value, so it is not known on which side"):
        infer_schema(World.alone(), Table(files=str(tmp_path / "a.csv")), "y", split=split)
    (tmp_path / "b.csv").write_text("t,x,y\n1,2,a\n2,3,b\n3,4,a\n4,4,b\n")
    infer_schema(World.alone(), Table(files=str(tmp_path / "b.csv")), "y", split=split)
    schema = infer_schema(World.alone(), Table(files=str(tmp_path / "b.csv")), "y", split=split)
    (tmp_path / "s.yaml").write_text(schema.to_yaml())
    with pytest.raises(UserError, match=r"a\.csv: line 3: column 't' has no value"):
        convert(tmp_path / "d", [str(tmp_path / "a.csv")], Options(schema=tmp_path / "s.yaml", split="by names"))
    (tmp_path / "c.csv").write_text("t,x,y\n1,2,a\n1,3,b\n")
    with pytest.raises(UserError, match=r"no row of .*c\.csv is for test, by the schema's split"):
        convert(tmp_path / "e", [str(tmp_path / "c.csv")], Options(schema=tmp_path / "s.yaml", split="by names"))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ({"fraction": 2}, "split.fraction"),
        ({"fraction": 0.2, "by": "who", "time": "sold"}, "give `by` or `time`, one of them"),
        ({"fraction": 0.2, "by": "whom"}, "there is no column 'whom'; did you mean `who`?"),
        ({"fraction": 0.2, "time": "who", "after": 3}, "column 'who' is of type text"),
        ({"fraction": 0.2, "time": "sold", "after": 3}, "`after` one of these"),
        ({"fraction": 0.2, "time": "sold", "after": "yesterday"}, "'yesterday' is no date"),
        ({"fraction": 0.2, "after": 3}, "`after` is for `time`"),
    ],
)
def test_a_schema_whose_split_is_wrong_is_refused(split: dict[str, Any], expected: str) -> None:
    columns = {"who": {"type": "text", "role": "id"}, "sold": {"type": "date", "role": "date"}}
    with pytest.raises(UserError) as refused:
        TableSchema(columns=columns, split=split)  # type: ignore[arg-type]
    assert expected in str(refused.value)
