"""Jobs that train trees: on one rank and several, stopped and gone on with to the bit, and what exports predict."""

from __future__ import annotations

import csv
import signal
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xgboost

from hpc_train.boosting.rounds import TREES
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.config.row_split import RowSplit
from hpc_train.config.table import Table
from hpc_train.config.table_schema import read_schema
from hpc_train.data.writing.convert import Options, convert
from hpc_train.distributed.world import World
from hpc_train.inference.loaded_export import load_export
from hpc_train.inference.predictor import predict_shards
from hpc_train.inference.table_predictor import TableRequest, predict_table
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_TERMINATED
from hpc_train.tabular.inference import infer_schema
from tests.support import BIN, LIMIT_SECS, environment, mpirun, run_program, wait_for

ROUNDS = 40
JOB = f"""\
name: trees
model: {{builtin: gbdt, schema: schema.yaml, max_depth: 4, learning_rate: 0.2}}
data:
  train: {{shards: data/train-*.h5}}
  eval: {{shards: data/test-*.h5}}
run: {{save_checkpoints_steps: 10, best_metric: auc, best_mode: max}}
train: {{max_steps: {ROUNDS}}}
eval: {{steps: null, throttle_secs: 0, exporters: {{best: {{metric: auc, mode: max}}, final: {{}}}}}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with missing values, texts and dates, its schema, its shards, and a job of it."""
    folder, chance = tmp_path_factory.mktemp("trees"), np.random.default_rng(0)
    with open(folder / "table.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "size", "city", "note", "sold", "label"])
        for k in range(2000):
            size, city = chance.normal(), int(chance.integers(30))
            note = ["never again", "a good one"][int(chance.integers(2))]
            label = size + (city % 3) + ("good" in note) + chance.normal() / 2 > 1.5
            day = f"2024-{1 + k % 12:02d}-{1 + k % 28:02d}"
            words = f"{note} of row {k}"
            writer.writerow([f"row {k}", "" if k % 7 == 0 else size, f"Stadt {city}", words, day, "ab"[int(label)]])
    found = infer_schema(World.alone(), Table(files=str(folder / "table.csv")), "label", split=RowSplit(fraction=0.25))
    (folder / "schema.yaml").write_text(found.to_yaml(), "utf-8")
    convert(
        folder / "data", [str(folder / "table.csv")], Options(schema=folder / "schema.yaml", split="by names", shards=3)
    )
    (folder / "job.yaml").write_text(JOB)
    return folder


def hpc_train(folder: Path, *words: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    return run_program([*(mpirun(ranks) if ranks else []), str(BIN / "hpc-train"), *words], folder)


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[int, JobDir]:
    """The job-dirs of one rank and of two."""
    found = {}
    for ranks in (1, 2):
        done = hpc_train(folder, "train", "job.yaml", "--job-dir", f"on-{ranks}", ranks=ranks if ranks > 1 else 0)
        assert done.returncode == 0, done.stdout + done.stderr
        found[ranks] = JobDir(folder / f"on-{ranks}")
    return found


def trees(job_dir: JobDir, step: int = ROUNDS) -> bytes:
    loaded = CheckpointManager(job_dir.checkpoints_path, Retention(0, None)).load(step)
    return loaded.model[TREES].tobytes()


def metrics(job_dir: JobDir, step: int = ROUNDS) -> dict[str, float]:
    return job_dir.evaluations()["eval"][step]


def test_two_ranks_grow_the_trees_of_one(trained: dict[int, JobDir]) -> None:
    for job_dir in trained.values():
        assert job_dir.status()["state"] == "succeeded"
        assert job_dir.checkpoints() == [10, 20, 30, 40]
        assert sorted(job_dir.evaluations()["eval"]) == [10, 20, 30, 40]
        assert metrics(job_dir)["auc"] > 0.85
        assert (job_dir.path / "report.html").is_file()
        assert sorted(job_dir.exports()) == ["best", "final"]
    one, two = (metrics(job_dir) for job_dir in trained.values())
    assert list(one) == [
        "loss",
        "accuracy",
        "auc",
        "auc_precision_recall",
        "precision",
        "recall",
        "label_mean",
        "prediction_mean",
    ]
    for name, value in one.items():
        assert two[name] == pytest.approx(value, abs=0.01), name


def test_a_job_that_is_stopped_grows_the_same_trees(folder: Path, trained: dict[int, JobDir]) -> None:
    job_dir = JobDir(folder / "stopped")
    words = ["launch", "-n", "2", "job.yaml", "--job-dir", "stopped"]
    slow = [str(BIN / "hpc-train"), *words, "--debug-delay", "0:500"]
    with subprocess.Popen(
        slow, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        wait_for(lambda: job_dir.checkpoints(), "a checkpoint")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=LIMIT_SECS)[0].decode()
    assert process.returncode == EXIT_TERMINATED, said
    assert job_dir.status()["state"] == "stopped"
    assert 10 <= job_dir.checkpoints()[-1] < ROUNDS
    done = hpc_train(folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on from round" in done.stdout
    assert trees(job_dir) == trees(trained[2])
    assert metrics(job_dir) == metrics(trained[2])


def test_ranks_may_have_few_rows_and_none_to_evaluate_with(folder: Path) -> None:
    lines = (folder / "table.csv").read_text("utf-8").splitlines(keepends=True)
    for name, last in (("few", 41), ("two", 3)):
        (folder / f"{name}.csv").write_text("".join(lines[:last]), "utf-8")
        convert(folder / name, [str(folder / f"{name}.csv")], Options(schema=folder / "schema.yaml", shards=1))
    rows = ["--set=data.train.shards=few-*.h5", "--set=data.eval.shards=two-*.h5"]
    done = hpc_train(folder, "launch", "-n", "3", "job.yaml", "--job-dir", "few-rows", *rows)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "13 of 40 rows" in done.stdout
    few = JobDir(folder / "few-rows")
    assert few.status()["state"] == "succeeded"
    assert metrics(few)["label_mean"] in (0.0, 0.5, 1.0)


def test_exports_predict_what_plain_xgboost_does_and_what_was_evaluated(
    folder: Path, trained: dict[int, JobDir], tmp_path: Path
) -> None:
    export = load_export(trained[1].path / "export" / "final")
    assert export.step == ROUNDS
    table = folder / "table.csv"
    done = predict_table(World.alone(), export, TableRequest((str(table),), tmp_path / "p.csv"), lambda line: None)
    assert done.rows == 2000
    with open(tmp_path / "p.csv", encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    assert names == ["id", "prediction", "probability_b"]
    assert rows[5][0] == "row 5"
    by_table = np.array([float(row[2]) for row in rows], np.float32)
    assert [row[1] for row in rows] == ["ab"[int(p > 0.5)] for p in by_table]

    found = predict_shards(World.alone(), export, [str(folder / "data" / "test-*.h5")], str(tmp_path / "p-*.h5"))
    assert found.rows == 500
    labels, predicted = [], []
    for shard, path in zip(sorted((folder / "data").glob("test-*.h5")), sorted(tmp_path.glob("p-*.h5")), strict=True):
        with h5py.File(shard) as given, h5py.File(path) as made:
            labels.append(given["label"][:])
            predicted.append(made["probability"][:, 0])
    test, said = np.concatenate(labels), np.concatenate(predicted)
    assert np.mean((said > 0.5) == (test == 1)) == pytest.approx(metrics(trained[1])["accuracy"], abs=1e-6)
    assert set(said.tolist()) <= set(by_table.tolist())

    plain = xgboost.Booster(model_file=str(export.path / "model.ubj"))
    assert plain.num_boosted_rounds() == ROUNDS
    with open(table, encoding="utf-8", newline="") as file:
        given_rows = list(csv.DictReader(file))
    assert plain.feature_names is not None
    rows_of_trees: Any = np.zeros((2000, len(plain.feature_names)), np.float32)
    schema = read_schema(export.path / "assets" / "schema.yaml")
    for place, name in enumerate(plain.feature_names):  # by hand, as the documentation says
        column = next(c for c in schema.features if name == c or name.startswith((f"{c} (", f"{c}: ")))
        values = [row[column] for row in given_rows]
        if name == "size":
            rows_of_trees[:, place] = [float(value or "nan") for value in values]
        elif name == "city":
            rows_of_trees[:, place] = [list(schema.columns["city"].vocabulary).index(value) for value in values]
        elif name.startswith("note: "):
            rows_of_trees[:, place] = [value.split().count(name.removeprefix("note: ")) for value in values]
        elif name == "note (words)":
            rows_of_trees[:, place] = [len(value.split()) for value in values]
        else:
            days = np.array(values, "datetime64[D]")
            parts = {
                "day": days.astype(int),
                "time of day": 0,
                "weekday": (days.astype(int) + 3) % 7,
                "day of year": days.astype(int) % 365.2425,
            }
            rows_of_trees[:, place] = parts[name.removeprefix("sold (").removesuffix(")")]
    names_of, kinds = plain.feature_names, plain.feature_types
    matrix = xgboost.DMatrix(rows_of_trees, feature_names=names_of, feature_types=kinds, enable_categorical=True)
    np.testing.assert_allclose(plain.predict(matrix), by_table, atol=1e-6, rtol=0)


def test_commands_for_keras_models_refuse_in_one_sentence(folder: Path, trained: dict[int, JobDir]) -> None:
    for command in ("export", "evaluate"):
        refused = hpc_train(folder, command, "on-1")
        assert refused.returncode == EXIT_BAD_INPUT, refused.stdout + refused.stderr
        assert (
            "builtin gbdt: is no Keras model; trees are evaluated and exported while they are trained" in refused.stderr
        )
        assert "Traceback" not in refused.stderr
    linear = ["--set", "model={builtin: linear, schema: schema.yaml}"]
    done = hpc_train(folder, "train", "job.yaml", "--job-dir", "linear", *linear, "--set", "train.max_steps=10")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (["on-1", *linear], ["linear"]):
        refused = hpc_train(folder, "train", "job.yaml", "--job-dir", *words)
        assert refused.returncode == EXIT_BAD_INPUT, refused.stdout + refused.stderr
        assert "another model" in refused.stderr
        assert "Traceback" not in refused.stderr
    listed = hpc_train(folder, "list", "--root", str(folder))
    assert listed.stdout.count("SUCCEEDED  40/40") >= 2, listed.stdout
    again = hpc_train(folder, "train", "job.yaml", "--job-dir", "on-1", "--set", "model.max_depth=2")
    assert again.returncode == 0, again.stderr
    assert trees(trained[1]) == trees(JobDir(folder / "on-1"))
