"""Tables on several ranks: the same to the bit on any number, and one sentence where one is bad."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from hpc_train.config.table_schema import read_schema
from tests.support import BIN, REPOSITORY, run_program, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "tables.py"
ROWS = 60_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 MB in three CSV files, one of them gzipped, with line breaks in fields; and the first one as Parquet."""
    folder, chance = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    for number in range(3):
        with open(folder / f"{number}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "age", "city", "note", "born", "income"])
            ages, cities = chance.integers(18, 90, ROWS), chance.zipf(1.3, ROWS) % 5000
            for k in range(ROWS):
                age = "" if k % 10 == number else ages[k]
                note = 'a "quoted" word,\nand a line break' if k % 3 == 0 else "plain words of a note " * 2
                rich = "yes" if ages[k] > 50 else "no"
                writer.writerow([number * ROWS + k, age, f"Stadt {cities[k]}", note, f"19{50 + k % 50}-01-02", rich])
    pyarrow.parquet.write_table(
        pyarrow.csv.read_csv(folder / "0.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)),
        folder / "0.parquet",
        row_group_size=9000,
    )
    (folder / "2.csv.gz").write_bytes(gzip.compress((folder / "2.csv").read_bytes(), 1))
    (folder / "2.csv").unlink()
    return folder


def test_all_is_the_same_on_any_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    for name in ("*.csv*", "0.parquet"):
        found = []
        for ranks in (1, 2, 3, 4) if name == "*.csv*" else (1, 3):
            done = run_ranks(ranks, [PROGRAM, str(folder / name), "income", tmp_path], tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            found.append(json.loads((tmp_path / f"{ranks}.json").read_text()))
        assert all(one == found[0] for one in found)
        rows = ROWS * (3 if name == "*.csv*" else 1)
        (tmp_path / "schema.yaml").write_text(found[0]["schema"])
        schema = read_schema(tmp_path / "schema.yaml")
        assert {name: column.role for name, column in schema.columns.items()} == {
            "id": "id",
            "age": "numeric",
            "city": "categorical",
            "note": "categorical",
            "born": "date",
            "income": "label",
        }
        assert found[0]["sums"]["rows"] == found[0]["statistics"]["rows"] == schema.rows == rows
        assert sum(found[0]["sums"]["city"].values()) == rows
        age = schema.columns["age"].statistics
        assert age is not None and age.missing == rows // 10
        assert abs((age.mean or 0) - found[0]["sums"]["age"]) < 1e-9
        assert f"rows: {rows // 2}\n" in found[0]["half"]


def test_commands_on_ranks_end_with_one_sentence(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_bytes((folder / "0.csv").read_bytes() + b"1,2\n")
    lines = bad.read_bytes().count(b"\n")
    for words, text in (
        (["schema", bad, "--label", "income"], f"bad.csv: line {lines:,} has 2 fields, but there are 6 columns"),
        (["stats", bad], f"bad.csv: line {lines:,} has 2 fields, but there are 6 columns"),
        (["schema", folder / "0.csv", "--label", "incme"], "has no such column; did you mean `income`?"),
        (["schema", folder / "0.csv", "--label", "income", "--out", tmp_path / "none" / "s.yaml"], "no such folder"),
    ):
        done = run_ranks(2, [BIN / "hpc-train", *words], tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("hpc-train: error: ") == 1 and text in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "schema.yaml").exists()


def test_the_command_shows_and_writes_what_it_finds(folder: Path, tmp_path: Path) -> None:
    words = [str(BIN / "hpc-train"), "schema", str(folder / "0.parquet"), "--label", "income"]
    done = run_program(words, tmp_path, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert "60,000 rows of 6 columns, label income: binary" in done.stdout.replace("60000", "60,000")
    assert "id: whole numbers that count the rows" in done.stdout
    assert read_schema(tmp_path / "schema.yaml").label == "income"
    again = run_program(words, tmp_path)
    assert again.returncode == 2 and "schema.yaml: is there already; --force replaces it" in again.stderr
    assert run_program([*words, "--force", "--task", "classes"], tmp_path).returncode == 0
    assert read_schema(tmp_path / "schema.yaml").task == "classes"
    done = run_program([*words[:1], "stats", str(folder / "0.parquet"), "--schema", "schema.yaml", "--json"], tmp_path)
    columns = json.loads(done.stdout)["columns"]
    assert columns["born"]["min"] == "1950-01-02" and columns["age"]["missing"] == ROWS // 10
