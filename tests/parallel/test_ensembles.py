"""An ensemble of a small real job: trained, exported, evaluated against its members, and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from tests.support import run_program

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
    done = run_program(["hpc-train", *words], folder)
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
    assert "export: runs/digits_ensemble/export/ensemble/" in printed and "member 0001" in printed

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
    assert "trial 0000" not in made and "combining 2 members" in made
    assert json.loads((ensemble / "ensemble.json").read_text())["mean"] == result["mean"]

    call(
        folder,
        *("predict", f"{ensemble}/export/ensemble", "--shards", "test.h5", "--out", "predictions.h5"),
    )
    with h5py.File(folder / "predictions.h5") as file:
        assert file["members"].shape == (397, 2, 10) and file["mean"].shape == (397, 10)
