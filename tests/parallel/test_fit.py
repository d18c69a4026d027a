"""hpc-train fit: from a table to an export, on several ranks, in a folder that one can go on with."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from hpc_train.config.job import load_job
from hpc_train.config.table_schema import read_schema
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.inference.loaded_export import LoadedExport, load_export
from hpc_train.inference.table_predictor import TableRequest, predict_table
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_TERMINATED
from tests.forks import forks
from tests.support import BIN, LIMIT_SECS, environment, mpirun, run_program, run_ranks

PROGRAMS = Path(__file__).parent / "programs"
ROWS, NAMES = 1500, ("kept", "returned")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Customers with several rows each, over time; the label follows from size and city."""
    path, chance = tmp_path_factory.mktemp("table") / "käufe 2024.csv", np.random.default_rng(0)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "sold", "size", "city", "returned"])
        for k in range(ROWS):
            size, city = chance.normal(), chance.choice(["Bern", "Genève", "Zürich", ""])
            returned = size + (city == "Bern") + chance.normal() / 2 > 0.5
            writer.writerow(
                [f"c{chance.integers(200)}", f"2024-01-{1 + k * 30 // ROWS:02d}", size, city, NAMES[int(returned)]]
            )
    return path


def hpc_train(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program([str(BIN / "hpc-train"), *words], folder, **forks(environment()))


def fit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return hpc_train(folder, "fit", *words)


def words_of(table: Path) -> list[str]:
    return [str(table), "--label", "returned", "--out", "out", "--model", "linear", "-n", "2", "--time", "sold"]


@pytest.fixture(scope="module")
def fitted(table: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder in which the table has been fitted, and how."""
    return table.parent, fit(table.parent, *words_of(table), "--set", "train.max_steps=200")


def test_a_table_becomes_a_model_and_its_folder_can_be_gone_on_with(
    table: Path, fitted: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    words, (tmp_path, done) = words_of(table), fitted
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines() if line.startswith("$ ")] == [
        "schema",
        "shard",
        "launch",
    ]
    out = tmp_path / "out"
    schema, job, job_dir = read_schema(out / "schema.yaml"), load_job(out / "job.yaml"), JobDir(out / "runs" / "out")
    assert schema.rows == 4 * ROWS // 5
    assert (job.train.max_steps, job.data.train.batch_size) == (200, 32)
    assert job_dir.status()["state"] == "succeeded"
    assert job_dir.status()["ranks"] == 2
    evaluations = job_dir.evaluations()["eval"]
    best = max(metrics["auc"] for metrics in evaluations.values())
    assert best > 0.85
    assert f"auc {best:.4g}" in done.stdout
    (export,) = (job_dir.path / "export" / "best").glob("[0-9]*")
    assert read_schema(export / "assets" / "schema.yaml") == schema
    assert (job_dir.path / "report.html").is_file()

    before = sorted((path, path.stat().st_mtime_ns) for path in out.glob("*/*.h5"))
    again = fit(tmp_path, *words, "--set", "train.max_steps=200")
    assert again.returncode == 0, again.stderr
    assert "nothing is left to train" in again.stdout + again.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in out.glob("*/*.h5")) == before
    refused = fit(tmp_path, *words, "--set", "train.max_steps=300")
    assert refused.returncode == EXIT_BAD_INPUT
    assert "was made by another command, in which --set was train.max_steps=200" in refused.stderr

    shutil.copytree(out, tmp_path / "elsewhere")
    trained = hpc_train(tmp_path, "train", "elsewhere/job.yaml", "--job-dir", "other")
    assert trained.returncode == 0, trained.stderr
    assert JobDir(tmp_path / "other").status()["step"] == 200


def predict(folder: Path, export: Path, out: str, *words: object) -> subprocess.CompletedProcess[str]:
    return hpc_train(folder, "predict", str(export), "--out", out, *map(str, words))


@pytest.fixture(scope="module")
def export(fitted: tuple[Path, subprocess.CompletedProcess[str]]) -> LoadedExport:
    return load_export(fitted[0] / "out" / "runs" / "out" / "export" / "best")


def test_new_rows_are_predicted_as_shards_of_them_are(table: Path, export: LoadedExport, tmp_path: Path) -> None:
    schema_file = table.parent / "out" / "schema.yaml"
    done = predict(tmp_path, export.path.parent, "p.csv", "--table", table, "--keep", "customer,sold")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"done: {ROWS:,} rows predicted" in done.stdout
    found, given = pyarrow.csv.read_csv(tmp_path / "p.csv"), pyarrow.csv.read_csv(table)
    assert found.column_names == ["customer", "sold", "prediction", "probability_returned"]
    for name in ("customer", "sold"):
        assert found.column(name) == given.column(name)
    probabilities = found.column("probability_returned").to_numpy()
    assert found.column("prediction").to_pylist() == [NAMES[int(p > 0.5)] for p in probabilities]
    hpc_train(tmp_path, "shard", "all", str(table), "--schema", str(schema_file))
    by_shards = predict(tmp_path, export.path, "q-*.h5", "--shards", "all-*.h5")
    assert by_shards.returncode == 0, by_shards.stderr
    parts = []
    for path in sorted(tmp_path.glob("q-*.h5")):
        with h5py.File(path) as file:
            parts.append(file["probability"][:, 0])
    np.testing.assert_allclose(probabilities, np.concatenate(parts), atol=1e-6, rtol=0)


@pytest.mark.parametrize("ranks", [2, 3])
def test_several_ranks_write_the_same_bytes_and_leave_nothing_else(
    ranks: int, table: Path, export: LoadedExport, tmp_path: Path
) -> None:
    text, bad, zipped, out = table.read_text("utf-8"), *(tmp_path / name for name in ("b.csv", "z.csv.gz", "out"))
    zipped.write_bytes(gzip.compress(text.encode()))
    bad.write_text(text + "c1,2024-01-30,much,Bern,kept\n", "utf-8")
    out.mkdir()
    ended = run_ranks(ranks, [PROGRAMS / "predict_tables.py", export.path, out, bad, table, zipped], tmp_path)
    assert ended.returncode == 0, ended.stderr
    for name in ("p.csv", "p.parquet"):
        request = TableRequest((str(table), str(zipped)), tmp_path / name, ("city", "sold"))
        assert predict_table(World.alone(), export, request, print).rows == 2 * ROWS
        assert (out / name).read_bytes() == (tmp_path / name).read_bytes()
    found, written = pyarrow.parquet.read_table(out / "p.parquet"), pyarrow.csv.read_csv(out / "p.csv")
    assert found.column("probability_returned").to_pylist() == [
        np.float32(value) for value in written.column("probability_returned").to_pylist()
    ]
    problem = f"line {ROWS + 2:,}: column 'size' has 'much', not a number; mend it, or leave its row out"
    assert ended.stdout.count(f"refused: {bad}: {problem}\n") == ranks
    assert sorted(path.name for path in out.iterdir()) == ["p.csv", "p.parquet"]


def test_tables_that_do_not_fit_are_refused_in_one_sentence(table: Path, export: LoadedExport, tmp_path: Path) -> None:
    """In one process, since each would load TensorFlow again."""
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere")
    (tmp_path / "self.csv").symlink_to(tmp_path / "new.csv")
    (tmp_path / "there.csv").write_text("mine")
    said: list[str] = []

    def refused(text: str, expected: str, name: str = "new.csv", **options: Any) -> None:
        (tmp_path / name).write_text(text, "utf-8")
        request = TableRequest((str(tmp_path / name),), **{"out": tmp_path / "p.csv", **options})
        with pytest.raises(UserError) as error:
            predict_table(World.alone(), export, request, said.append)
        assert expected in str(error.value)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "p.csv").exists()

    good = "customer,sold,size,city\nc1,2024-01-02,1.5,Bern\nc2,2024-01-02,,Genève\n"
    refused(good.replace("size", "sise"), "new.csv: has no column 'size', which the schema uses; did you mean `sise`?")
    refused(good.replace("1.5", "big"), "new.csv: line 2: column 'size' has 'big', not a number; mend it, or leave")
    refused(good.replace("2024-01-02,,", "2.1.2024,,"), "new.csv: line 3: column 'sold' has '2.1.2024', not a date")
    refused(good.replace("city\n", "size\n"), "columns 3 and 4 are both called 'size'")
    refused(good.replace(",Bern", ",Bern,1"), "new.csv: line 2")
    refused("customer,sold,size,city\n", "has no rows")
    refused(good, "--keep custmer: ", keep=("custmer",))
    refused(good, "is the table itself", out=tmp_path / "new.csv", overwrite=True)
    refused(good, "is the table itself", out=tmp_path / "self.csv", overwrite=True)
    refused(good, "link.csv: is there already; name", out=tmp_path / "link.csv")
    refused(good, "there.csv: is there already; name another file, or give --overwrite", out=tmp_path / "there.csv")
    refused(good, "written as .csv or .parquet", out=tmp_path / "p.xlsx")
    refused(good, "no such folder", out=tmp_path / "none" / "p.csv")
    refused(good.replace("customer", "prediction"), "is called as a prediction is", keep=("prediction",))
    with pytest.raises(UserError, match="is a folder, not a regular file"):
        predict_table(World.alone(), export, TableRequest((str(tmp_path),), tmp_path / "p.csv"), said.append)
    numbers = {"customer": ["c1"], "sold": [20240102], "size": [1.5], "city": ["Bern"]}
    pyarrow.parquet.write_table(pyarrow.table(numbers), tmp_path / "new.parquet")
    request = TableRequest((str(tmp_path / "new.parquet"),), tmp_path / "p.parquet")
    with pytest.raises(UserError, match="column 'sold' has the type integer, in the schema of the model date; write"):
        predict_table(World.alone(), export, request, said.append)
    assert said == []

    labelled = (
        good.replace("city\n", "city,returned\n").replace("Bern\n", "Bern,\n").replace("Genève\n", "Genève,who\n")
    )
    (tmp_path / "labelled.csv").write_text(labelled, "utf-8")
    request = TableRequest((str(tmp_path / "labelled.csv"),), tmp_path / "p.csv", keep=("returned",))
    assert predict_table(World.alone(), export, request, said.append).rows == 2
    assert [row.split(",")[0] for row in (tmp_path / "p.csv").read_text().splitlines()] == ["returned", "", "who"]

    odd = good.replace("city\n", "city,näxt\n").replace("Bern\n", 'Bern,"a\nb"\n').replace("Genève\n", "nowhere,\n")
    (tmp_path / "odd.csv").write_text("\ufeff" + odd.replace("\n", "\r\n"), "utf-8")
    request = TableRequest((str(tmp_path / "odd.csv"),), tmp_path / "p.csv", keep=("näxt", "size"), overwrite=True)
    assert predict_table(World.alone(), export, request, said.append).rows == 2
    assert said == []
    with open(tmp_path / "p.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["näxt", "size", "prediction", "probability_returned"]
    assert [row[:2] for row in rows[1:]] == [["a\r\nb", "1.5"], ["", ""]]
    request = TableRequest((str(tmp_path / "odd.csv"),), tmp_path / "p.csv", overwrite=True)
    predict_table(World.alone(), export, request, said.append)
    assert said == [f"{tmp_path / 'odd.csv'}: has columns that the model was not trained with, and leaves out: näxt"]


def test_a_run_that_is_stopped_goes_on_and_tables_of_their_own_are_evaluated(table: Path, tmp_path: Path) -> None:
    rows = table.read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "train.csv").write_text("".join(rows[:1001]), "utf-8")
    (tmp_path / "new.csv").write_text("".join([rows[0], *rows[1001:]]), "utf-8")
    words = ["train.csv", "--label", "returned", "--eval", "new.csv", "--set", "train.max_steps=30", "--model=linear"]
    command = [str(BIN / "hpc-train"), "fit", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "hpc-train schema" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=LIMIT_SECS)[0]
    assert process.returncode == EXIT_TERMINATED
    assert "the same command goes on from here" in said
    assert not (tmp_path / "train" / "job.yaml").exists()
    done = fit(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_schema(tmp_path / "train" / "schema.yaml").rows == 1000
    data = json.loads((tmp_path / "train" / "runs" / "train" / "data.json").read_text())
    assert {name: sum(shard["rows"] for shard in data[name]) for name in ("train", "eval")} == {
        "train": 1000,
        "eval": 500,
    }


def test_ranks_that_were_started_already_are_refused(table: Path, tmp_path: Path) -> None:
    command = [*mpirun(2), str(BIN / "hpc-train"), "fit", str(table), "--label", "returned"]
    refused = run_program(command, tmp_path)
    assert refused.returncode == EXIT_BAD_INPUT
    assert "hpc-train fit starts its ranks by itself, see --ranks; start it without mpirun" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--label", "returnd"], "--label returnd: table.csv has no such column; did you mean `returned`?"),
        (["--label", "returned", "--model", "tree"], "--model tree: allowed: linear, dnn, wide_deep, gbdt"),
        (["--label", "returned", "--set", "train.max_step=3"], "--set train.max_step: train.max_step: unknown key"),
        (["--label", "returned", "--split", "1.5"], "--split 1.5"),
        (
            ["--label", "returned", "--split-by", "customer", "--time", "sold"],
            "--split-by and --time: give one of them",
        ),
        (["--label", "returned", "--eval", "none.csv"], "none.csv: no such file"),
        (["--schema", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(words: list[str], expected: str, table: Path, tmp_path: Path) -> None:
    shutil.copy(table, tmp_path / "table.csv")
    refused = fit(tmp_path, "table.csv", *words)
    assert refused.returncode == EXIT_BAD_INPUT, refused.stdout + refused.stderr
    errors = [line for line in refused.stderr.splitlines() if line.startswith("hpc-train: error: ")]
    assert len(errors) == 1, refused.stderr
    assert expected in errors[0]
    assert "Traceback" not in refused.stderr
