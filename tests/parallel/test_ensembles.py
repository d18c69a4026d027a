"""An ensemble of a small real job: trained, exported, evaluated against its members, and gone on with."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from tests.forks import forks
from tests.support import BIN, LIMIT_SECS, environment, run_program, wait_for

MODEL = """
import keras

def build_model(params):
    model = keras.Sequential([
        keras.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(params["width"], activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(10),
    ])
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
"""
JOB: dict[str, Any] = {
    "name": "digits",
    "model": "model.py:build_model",
    "params": {"width": 32},
    "data": {
        "train": {"shards": "train.h5", "features": "x", "label": "y", "batch_size": 32},
        "eval": {"shards": "test.h5", "features": "x", "label": "y", "batch_size": 50},
    },
    "run": {"save_checkpoints_steps": 25},
    "train": {"max_steps": 50},
    "eval": {"steps": None, "start_delay_secs": 0, "throttle_secs": 0, "eval_every_checkpoint": True},
    "resources": {"ranks_per_node": 1},
    "ensemble": {"members": 2, "vary": ["seed", "rows"]},
}
PREDICT = """
import json, sys
sys.modules["hpc_train"] = None
import h5py, keras, numpy as np, tensorflow as tf
ensemble, *members = sys.argv[1:]
with h5py.File("test.h5") as file:
    x, y = file["x"][()], file["y"][()]
found = tf.saved_model.load(ensemble).signatures["serving_default"](x=tf.constant(x))
found = {name: tensor.numpy() for name, tensor in found.items()}
again = keras.models.load_model(f"{ensemble}/model.keras")(x)
calls = [tf.saved_model.load(path).signatures["serving_default"] for path in members]
each = np.stack([tf.nn.softmax(*call(x=tf.constant(x)).values()).numpy() for call in calls], axis=1)
losses = [float(-np.log(p[np.arange(len(y)), y]).mean()) for p in (each.mean(1), *np.moveaxis(each, 1, 0))]
right = {"members": each, "mean": each.mean(1), "spread": each.std(1)}
print(json.dumps({
    "differences": [float(np.abs(given[name] - right[name]).max()) for given in (found, again) for name in right],
    "spread": float(found["spread"].max()), "losses": losses, "rows": len(y),
}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    for name, rows in (("train", order[:1400]), ("test", order[1400:])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"], file["y"] = x[rows].astype(np.float32), y[rows].astype(np.int64)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return tmp_path


def call(folder: Path, *words: str, code: int = 0) -> str:
    done = run_program(["hpc-train", *words], folder, **forks(environment()))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def test_an_ensemble_is_trained_exported_and_goes_on(folder: Path) -> None:
    refused = call(folder, "ensemble", "job.yaml", "--set", "run.best_metric=acuracy", code=2)
    assert "run.best_metric: no evaluation reports 'acuracy'; did you mean `accuracy`?" in refused
    assert not (folder / "runs/digits_ensemble").exists()

    printed = call(folder, "ensemble", "job.yaml")
    ensemble = folder / "runs/digits_ensemble"
    result = json.loads((ensemble / "ensemble.json").read_text())
    assert (result["task"], result["evaluation"], result["rows"]) == ("classes", "eval", 397)
    assert [member["trial"] for member in result["members"]] == [0, 1]
    assert "export: runs/digits_ensemble/export/ensemble/" in printed and "member 0001 begins: " in printed
    assert "the ensemble is over: all members have been tried" in printed and not re.search("trial |study", printed)

    members = []
    for member in result["members"]:
        job_dir = f"runs/digits_ensemble/trials/{member['trial']:04d}"
        call(folder, "export", job_dir, "--step", str(member["step"]), "--out", f"members/{member['trial']}")
        members += map(str, (folder / "members" / str(member["trial"])).glob("[0-9]*"))
    done = run_program(["python", "-c", PREDICT, str(ensemble / result["export"]), *members], folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert max(found["differences"]) < 1e-6, found
    assert found["spread"] > 1e-3, "the members differ"
    recorded = [result["mean"], *result["each"]]
    np.testing.assert_allclose([each["loss"] for each in recorded], found["losses"], rtol=1e-4)
    about = json.loads((ensemble / result["export"] / "hpc_train.json").read_text())
    assert about["members"] == result["members"] and about["metrics"] == result["mean"]
    assert about["keras_file"] == "model.keras"

    again = call(folder, "ensemble", "runs/digits_ensemble")
    assert again.splitlines() == printed[printed.index("eval, 397 rows") :].splitlines(), "nothing is done anew"

    (ensemble / "ensemble.json").unlink()
    made = call(folder, "ensemble", "job.yaml")
    assert "begins" not in made and "combining 2 members" in made
    assert json.loads((ensemble / "ensemble.json").read_text())["mean"] == result["mean"]

    call(
        folder,
        *("predict", f"{ensemble}/export/ensemble", "--shards", "test.h5", "--out", "predictions.h5"),
    )
    with h5py.File(folder / "predictions.h5") as file:
        assert file["members"].shape == (397, 2, 10) and file["mean"].shape == (397, 10)


WEIGHTS = ["ensemble={members: 3, combine: weights}", "run.learning_rate_cycle=12", "train.max_steps=60"]
WEIGHTS += ["run.save_summary_steps=1", "run.tf_random_seed=1", "data.train.seed=1"]
AVERAGED = """
import json, sys
import h5py, keras, numpy as np
ensemble, *members = [keras.models.load_model(f"{path}/model.keras") for path in sys.argv[1:]]
with h5py.File("train.h5") as file:
    x = file["x"][()].astype(np.float64)
first, norm, last = ensemble.layers[-3:]
means = [np.mean([np.asarray(m.layers[k].kernel, np.float64) for m in members], 0) for k in (-3, -1)]
seen = np.maximum(x / 16 @ np.asarray(first.kernel, np.float64) + np.asarray(first.bias), 0)
print(json.dumps({
    "kernels": [float(np.abs(np.asarray(k) - m).max()) for k, m in zip((first.kernel, last.kernel), means)],
    "mean": float(np.abs(np.asarray(norm.moving_mean) - seen.mean(0)).max()),
    "variance": float(np.abs(np.asarray(norm.moving_variance) - seen.var(0)).max()),
    "moved": float(np.abs(np.asarray(members[-1].layers[-2].moving_mean) - np.asarray(norm.moving_mean)).max()),
}))
"""
FROM_PYTHON = """
import json, sys
import hpc_train as ht
found = ht.ensemble("job.yaml", folder="runs/weights", settings=sys.argv[1:], ranks=1)
assert "tensorflow" not in sys.modules
print(json.dumps([str(found.export), found.scores, [[m.step, str(m.job_dir), m.scores] for m in found.members]]))
"""


def weights(export: Path) -> bytes:
    with zipfile.ZipFile(export / "model.keras") as file:
        return file.read("model.weights.h5")


def killed(folder: Path, words: list[str], after: str) -> None:
    """Starts the command, and kills it with all its ranks as soon as `after` is printed, or is in the folder."""
    log = folder / "killed.log"
    with open(log, "w") as out:
        command = [str(BIN / "hpc-train"), *words]
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_for(lambda: after in log.read_text() or any(folder.glob(after)), log.read_text)
        assert process.poll() is None, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_SECS)


def test_weights_are_averaged_over_cycles_and_survive_kills(folder: Path) -> None:
    job = yaml.safe_load((folder / "job.yaml").read_text())
    del job["ensemble"]
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    settings = [word for setting in WEIGHTS for word in ("--set", setting)]
    again = ["ensemble", "job.yaml", "--ensemble", "runs/killed", *settings]
    made = "runs/killed"
    for after in (f"{made}/trials/0000/checkpoints/step-*", "combining", "batch normalization", f"{made}/export/*/*"):
        killed(folder, again, after)
    printed = call(folder, *again)
    assert "0000 begins" not in printed, "no step before the last checkpoint is trained again"
    result = json.loads((folder / "runs/killed/ensemble.json").read_text())
    assert [member["step"] for member in result["members"]] == [36, 48, 60]
    assert f"; the last checkpoint's, 0000 at step 60: {result['each'][-1]['loss']:.5g}" in printed

    done = run_program(["python", "-c", FROM_PYTHON, *WEIGHTS], folder)
    assert done.returncode == 0, done.stderr
    assert "batch normalization" not in done.stderr and "member 0000 begins" in done.stderr
    export, scores, members = json.loads(done.stdout.splitlines()[-1])
    assert scores == result["mean"] and [member[2] for member in members] == result["each"]
    assert weights(Path(export)) == weights(folder / made / result["export"]), "kills change nothing"
    about = json.loads((Path(export) / "hpc_train.json").read_text())
    assert about["members"] == result["members"] and list(about["signature"]["outputs"]) == ["output_0"]

    lines = (folder / "runs/weights/trials/0000/metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    rates = {record["step"]: record["learning_rate"] for record in records if record["kind"] == "train"}
    assert len(rates) == 60
    for step, rate in rates.items():  # of the update that follows
        assert rate == pytest.approx(0.005 * (math.cos(math.pi * (step % 12) / 12) + 1), abs=1e-8), step

    exported = []
    for step, job_dir, _ in members:
        call(folder, "export", job_dir, "--step", str(step), "--out", f"members/{step}")
        exported += map(str, (folder / "members" / str(step)).glob("[0-9]*"))
    done = run_program(["python", "-c", AVERAGED, export, *exported], folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert max(found["kernels"]) < 1e-7 and found["mean"] < 1e-5 and found["variance"] < 1e-4, found
    assert found["moved"] > 1e-3, "the last checkpoint's are others"

    scheduled = MODEL.replace("Adam(0.01)", "Adam(keras.optimizers.schedules.CosineDecay(0.01, 50))")
    (folder / "model.py").write_text(scheduled)
    refused = call(folder, "ensemble", "job.yaml", *settings, code=2)
    assert "build_model has a learning rate of its own course, CosineDecay; give its optimizer a number" in refused
