"""hpc-train fit: from a table to an export, on several ranks, in a folder that one can go on with."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hpc_train.config.job import load_job
from hpc_train.config.table_schema import read_schema
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_TERMINATED
from tests.support import BIN, LIMIT_SECS, environment, run_program

ROWS = 1500


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
                [f"c{chance.integers(200)}", f"2024-01-{1 + k * 30 // ROWS:02d}", size, city, "ny"[returned]]
            )
    return path


def fit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program([str(BIN / "hpc-train"), "fit", *words], folder)


def test_a_table_becomes_a_model_and_its_folder_can_be_gone_on_with(table: Path, tmp_path: Path) -> None:
    words = [str(table), "--label", "returned", "--out", "out", "--model", "linear", "-n", "2", "--time", "sold"]
    done = fit(tmp_path, *words, "--set", "train.max_steps=200")
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
    export = max((job_dir.path / "export" / "best").iterdir())
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
    trained = run_program([str(BIN / "hpc-train"), "train", "elsewhere/job.yaml", "--job-dir", "other"], tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert JobDir(tmp_path / "other").status()["step"] == 200


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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--label", "returnd"], "--label returnd: table.csv has no such column; did you mean `returned`?"),
        (["--label", "returned", "--model", "tree"], "--model tree: allowed: linear, dnn, wide_deep"),
        (["--label", "returned", "--set", "train.max_step=3"], "--set train.max_step: train.max_step: unknown key"),
        (["--label", "returned", "--split", "1.5"], "--split 1.5"),
        (["--label", "returned", "--eval", "none.csv"], "none.csv"),
        (["--schema", "none.yaml"], "none.yaml: no such file"),
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
