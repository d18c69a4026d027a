"""Built-in models as jobs: from a schema and shards of raw rows to exports, on several ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

from hpc_train.config.table_schema import read_schema
from hpc_train.data.writing.writer import write_shards
from tests.ranks import hpc_train, train_in_turn
from tests.support import LIMIT_SECS, Job, run_program, variables
from tests.unit.models.schemas import statistics

CITIES = [f"city {number}" for number in range(2000)]
FEATURES = ["age in years", "city", "größe", "comment", "born"]


def rows(count: int, seed: int) -> dict[str, Any]:
    """A table with texts, missing values and a city of 2,000, of which some are in no vocabulary."""
    random = np.random.default_rng(seed)
    age = random.normal(40, 12, count)
    liked = random.integers(0, 2, count)
    words = [random.choice(["bad", "so"] if not y else ["good", "film"], random.integers(1, 4)) for y in liked]
    age[::7], born = np.nan, random.integers(0, 2_000_000_000, count).astype(float)
    city = random.choice(CITIES, count).tolist()
    city[::11] = [""] * len(city[::11])
    size = random.integers(0, 4, count).astype(float)
    columns = {"age in years": age, "city": city, "größe": size, "comment": [" ".join(w) for w in words], "born": born}
    return {**columns, "liked": liked}


def write_table(folder: Path) -> None:
    """Shards for training and evaluation, and the schema of what they hold."""
    (folder / "data").mkdir(parents=True)
    train = rows(400, 0)
    write_shards(folder / "data/train", train, shards=2)
    write_shards(folder / "data/test", rows(100, 1), shards=2)
    columns = {
        "row": {"type": "integer", "role": "id"},
        "age in years": {"type": "number", "role": "numeric", "statistics": statistics(train["age in years"])},
        "city": {"type": "text", "role": "categorical", "vocabulary": CITIES[:1500]},
        "größe": {"type": "integer", "role": "categorical", "vocabulary": [0, 1, 2]},
        "comment": {"type": "text", "role": "text", "vocabulary": ["good", "bad", "film"]},
        "born": {"type": "date", "role": "date", "statistics": statistics(train["born"])},
        "liked": {
            "type": "text",
            "role": "label",
            "vocabulary": ["no", "yes"],
            "statistics": {"count": 400, "counts": np.bincount(train["liked"]).tolist()},
        },
    }
    schema = {"task": "binary", "rows": 400, "columns": columns}
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema, allow_unicode=True, sort_keys=False))


def make_job(folder: Path, name: str, max_steps: int, model: dict[str, Any], exports: bool = False, **run: Any) -> Job:
    """A job beside others on the same shards; its schema lies in its own folder."""
    exporters: dict[str, Any] = {"final": {}} if exports else {}
    (folder / name).mkdir()
    (folder / name / "schema.yaml").write_text((folder / "schema.yaml").read_text())
    job = {
        "name": name,
        "model": {"schema": "schema.yaml", **model},
        "data": {
            "train": {"shards": f"{folder}/data/train-*.h5", "batch_size": 8, "seed": 1},
            "eval": {"shards": f"{folder}/data/test-*.h5", "batch_size": 8},
        },
        "run": {"save_checkpoints_steps": 20, "tf_random_seed": 1, "report": False, **run},
        "train": {"max_steps": max_steps, "class_weight": "balanced"},
        "eval": {"steps": None, "start_delay_secs": 0, "throttle_secs": 0, "exporters": exporters},
    }
    (folder / name / "job.yaml").write_text(yaml.safe_dump(job))
    return Job(folder / name)


PLAIN_KERAS = """
import glob, json, sys
import keras, numpy as np, tensorflow as tf

export, rows = sys.argv[1], json.load(open(sys.argv[2]))
rows = {k: tf.constant(v, tf.string if isinstance(v[0], str) else tf.float64) for k, v in rows.items()}
model = keras.models.load_model(export + "/model.keras")
inputs = json.load(open(export + "/hpc_train.json"))["signature"]["inputs"]
served = tf.saved_model.load(export).signatures["serving_default"]
served = served(**{name: rows[about.get("dataset", name)] for name, about in inputs.items()})
assert not [name for name in sys.modules if name.startswith("hpc_train")]
print(json.dumps([model(rows).numpy().tolist(), served["probability"].numpy().tolist()]))
"""


def test_models_of_a_table_train_resume_evaluate_and_serve_raw_rows(tmp_path: Path) -> None:
    write_table(tmp_path)
    dnn = {"builtin": "dnn", "hidden_units": [16], "dropout": 0.1, "batch_norm": True, "learning_rate": 0.01}
    wide = {"builtin": "wide_deep", "hidden_units": [8], "crosses": [["city", "größe"]], "hash_buckets": 50}
    straight, halves = make_job(tmp_path, "straight", 60, dnn, exports=True), make_job(tmp_path, "halves", 20, dnn)
    linear = make_job(tmp_path, "linear", 40, {"builtin": "linear"})
    others = [linear, make_job(tmp_path, "wide", 40, wide, mixed_precision="bfloat16")]
    done = train_in_turn([straight, halves, *others], 2)
    assert done.returncode == 0, done.stderr
    halves.file.write_text(halves.file.read_text().replace("max_steps: 20", "max_steps: 60"))
    done = train_in_turn([halves], 2)
    assert done.returncode == 0, done.stderr
    whole, resumed = variables(straight.job_dir, 60), variables(halves.job_dir, 60)
    assert set(whole) == set(resumed)
    for name, array in whole.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)

    assert read_schema(straight.job_dir / "schema.yaml") == read_schema(tmp_path / "schema.yaml")
    (straight.folder / "schema.yaml").unlink()  # nothing needs it any more
    done = hpc_train(["evaluate", str(straight.job_dir), "--out", str(tmp_path / "evaluated")], 2, tmp_path)
    assert done.returncode == 0, done.stderr
    (evaluated,) = records(tmp_path / "evaluated")
    (*_, of_the_job) = records(straight.job_dir)
    assert evaluated["auc"] == of_the_job["auc"] > 0.95
    done = hpc_train(["export", str(straight.job_dir), "--out", str(tmp_path / "served")], 0, tmp_path)
    assert done.returncode == 0, done.stderr
    (by_command,), (by_job,) = (tmp_path / "served").iterdir(), (straight.job_dir / "export/final").iterdir()
    for export in (by_command, by_job):
        assert read_schema(export / "assets/schema.yaml") == read_schema(tmp_path / "schema.yaml")

    asked = ["--shards", str(tmp_path / "data/test-*.h5"), "--out", str(tmp_path / "p-*.h5"), "--batch-size", "8"]
    done = hpc_train(["predict", str(by_job), *asked], 2, tmp_path)
    assert done.returncode == 0, done.stderr
    predicted = [h5py.File(path)["probability"][:] for path in sorted(tmp_path.glob("p-*.h5"))]
    raw = rows(100, 1)
    plain = {name: raw[name] if isinstance(raw[name], list) else raw[name].tolist() for name in FEATURES}
    (tmp_path / "rows.json").write_text(json.dumps(plain))
    (tmp_path / "plain.py").write_text(PLAIN_KERAS)
    for export in (by_job, by_command):
        out = subprocess.run(
            [sys.executable, "plain.py", str(export), "rows.json"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECS,
        ).stdout
        for outputs in json.loads(out):
            np.testing.assert_allclose(outputs, np.concatenate(predicted), atol=1e-6)


def test_a_job_dir_is_not_trained_further_with_another_schema(tmp_path: Path) -> None:
    write_table(tmp_path)
    job = make_job(tmp_path, "job", 20, {"builtin": "linear"})
    assert train_in_turn([job], 2).returncode == 0
    job.file.write_text(job.file.read_text().replace("max_steps: 20", "max_steps: 30"))
    path = job.folder / "schema.yaml"
    path.write_text(path.read_text().replace("- good\n    - bad", "- bad\n    - good"))
    done = train_in_turn([job], 2)
    assert done.returncode == 2
    assert f"{job.job_dir}: was trained with another schema (comment changed), which schema.yaml there" in done.stderr


def test_shards_of_other_classes_are_refused(tmp_path: Path) -> None:
    write_table(tmp_path)
    job = make_job(tmp_path, "job", 20, {"builtin": "linear"})
    assert train_in_turn([job], 2).returncode == 0
    named = {"columns": {"liked": {"classes": ["yes", "no"]}}}
    with h5py.File(tmp_path / "data/test-00001.h5", "a") as file:
        file.attrs["hpc_train_schema"] = json.dumps(named)
    evaluated = hpc_train(["evaluate", str(job.job_dir), "--out", str(tmp_path / "evaluated")], 2, tmp_path)
    for done in (train_in_turn([job], 2), evaluated):
        assert done.returncode == 2
        assert "data/test-00001.h5: labels 'liked' are numbers of the classes 'yes', 'no', but the sch" in done.stderr
        assert "Traceback" not in done.stderr


PROGRAM = """
import hpc_train as ht

def data(part):
    columns = ["age in years", "city", "größe", "comment", "born"]
    return ht.HDF5Input(f"data/{part}-*.h5", features=columns, label="liked", batch_size=8)

ht.train_and_evaluate(
    ht.Estimator(ht.builtin_model("dnn", "schema.yaml", hidden_units=[8]), ht.RunConfig("run", report=False)),
    ht.TrainSpec(data("train"), max_steps=5),
    ht.EvalSpec(data("test"), exporters=[ht.FinalExporter()]),
)
"""


def test_a_program_trains_a_built_in_model_which_its_job_dir_knows(tmp_path: Path) -> None:
    write_table(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_program([sys.executable, "program.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    described = yaml.safe_load((tmp_path / "run/job.yaml").read_text())
    assert (described["model"]["builtin"], described["model"]["schema"]) == ("dnn", "schema.yaml")
    for command in (["evaluate", "run", "--out", "evaluated"], ["export", "run", "--out", "served"]):
        done = hpc_train(command, 0, tmp_path)
        assert done.returncode == 0, done.stderr
    assert list((tmp_path / "served").glob("*/assets/schema.yaml"))


def records(folder: Path) -> list[dict[str, Any]]:
    """Of evaluations."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == "eval"]
