"""Jobs that start from what other jobs have left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.warm_start.source import read_source
from tests.ranks import train
from tests.support import FINAL, REPOSITORY, Job, variables

MakeJob = Callable[..., Job]

STILL = {"params": {"learning_rate": 0.0}, "run": {"save_checkpoints_steps": 10, "save_summary_steps": 1}}
"""A learning rate of 0 keeps what was taken, so that it can be compared."""


def evaluations(job: Job) -> dict[int, float]:
    records = [json.loads(line) for line in (job.job_dir / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["loss"] for record in records if record["kind"] == "eval"}


def model_variables(job: Job, step: int) -> dict[str, np.ndarray]:
    return {name: array for name, array in variables(job.job_dir, step).items() if name.startswith("model/")}


def record(job: Job) -> dict[str, Any]:
    return json.loads((job.job_dir / "warm_start.json").read_text())


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_job_starts_from_another_once(make_job: MakeJob, ranks: int) -> None:
    old = make_job("old", train={"max_steps": 20})
    assert train(old, ranks).returncode == 0
    new = make_job("new", warm_start_from="../old/run", train={"max_steps": 10}, **STILL)
    done = train(new, ranks)
    assert done.returncode == 0, done.stderr
    assert "warm start from" in done.stdout + done.stderr
    for name, array in model_variables(old, 20).items():
        np.testing.assert_array_equal(model_variables(new, 10)[name], array, err_msg=name)
    assert evaluations(new)[10] == pytest.approx(evaluations(old)[20], rel=1e-6)
    found = record(new)
    assert (Path(found["from"]), found["kind"], found["step"]) == (old.job_dir, "job-dir", 20)
    assert (len(found["taken"]), found["skipped"], found["missing"], found["unused"]) == (4, [], [], [])

    old.job_dir.rename(old.folder / "gone")
    new.file.write_text(new.file.read_text().replace("max_steps: 10", "max_steps: 20"))
    done = train(new, ranks)
    assert done.returncode == 0, done.stderr
    assert "warm start from" not in done.stdout + done.stderr, "it goes on from its own checkpoint"
    assert record(new) == found


def test_an_export_starts_a_job_too_and_shapes_that_differ_are_listed(make_job: MakeJob) -> None:
    old = make_job("old", train={"max_steps": 10}, eval=FINAL)
    assert train(old).returncode == 0
    export = next((old.job_dir / "export" / "final").glob("[0-9]*"))
    new = make_job("new", warm_start_from=str(export), train={"max_steps": 10}, **STILL)
    assert train(new, 2).returncode == 0
    for name, array in model_variables(old, 10).items():
        np.testing.assert_array_equal(model_variables(new, 10)[name], array, err_msg=name)

    wide = (new.folder / "model.py").read_text().replace("Dense(16", "Dense(32")
    wider = make_job("wider", model=wide, warm_start_from="../old/run", train={"max_steps": 10})
    done = train(wider, 2)
    assert done.returncode == 2
    assert "3 of 4 variables differ" in done.stderr
    for text in ("float32 [8, 32] here", "float32 [32] here", "float32 [32, 4] here"):
        assert text in done.stderr
    assert not wider.job_dir.exists(), "nothing is written before it is known to fit"
    missing = make_job("missing", warm_start_from="../none", train={"max_steps": 10})
    done = train(missing)
    assert done.returncode == 2
    assert "there is no such file or folder" in done.stderr
    itself = make_job("itself", warm_start_from="run", train={"max_steps": 10})
    done = train(itself)
    assert done.returncode == 2
    assert "is the job-dir itself" in done.stderr


ESTIMATOR = REPOSITORY / "tests/data/estimator_2_15/dnn_classifier"
"""A DNNClassifier of 3 numbers with 8 and 4 units; TensorFlow 2.15 wrote it."""
OF_ESTIMATOR = """
import keras
from keras import layers

def build_model(params):
    inputs = keras.Input((8,))
    hidden = layers.Dense(4, "relu", name="second")(layers.Dense(8, "relu", name="first")(inputs[:, :3]))
    outputs = layers.Dense(4, name="head")(layers.Dense(3, name="more")(hidden) if params.get("more") else hidden)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


def test_a_checkpoint_of_tensorflow_starts_a_job(make_job: MakeJob, tmp_path: Path) -> None:
    shutil.copytree(ESTIMATOR, tmp_path / "model_dir")
    hidden = {"ckpt_to_initialize_from": str(tmp_path / "model_dir"), "vars_to_warm_start": ["(?!head)"]}
    short = {"train": {"max_steps": 10}, "run": {"save_checkpoints_steps": 10}, "model": OF_ESTIMATOR}
    new = make_job("new", warm_start_from=hidden, **short)
    done = train(new, 2)
    assert done.returncode == 0, done.stderr
    ours, theirs = read_source(new.job_dir).arrays, read_source(ESTIMATOR).arrays
    for here, there in (("first", "hiddenlayer_0"), ("second", "hiddenlayer_1")):
        for role in ("kernel", "bias"):
            np.testing.assert_array_equal(ours[f"{here}/{role}"], theirs[f"dnn/{there}/{role}"])
    found = record(new)
    assert (found["from"], found["kind"], found["step"]) == (
        str(tmp_path / "model_dir/model.ckpt-20"),
        "TensorFlow checkpoint",
        20,
    )
    assert found["unused"] == ["dnn/logits/bias", "dnn/logits/kernel"]
    assert "there, but of no model: 1 (counter), 8 (optimizer)" in done.stdout + done.stderr

    unclear = make_job("unclear", warm_start_from=hidden, params={"more": True}, **short)
    (tmp_path / "model_dir/model.ckpt-20.index").write_bytes(b"garbage")
    damaged = make_job("damaged", warm_start_from=hidden, **short)
    for job, path, message in (
        (unclear, ESTIMATOR, "is of a canned estimator, with dnn/hiddenlayer_0/kernel, "),
        (damaged, tmp_path / "model_dir", "model.ckpt-20.index: damaged, or not written by TensorFlow; copy all files"),
        (damaged, tmp_path / "model_dir/model.ckpt-2", "did you mean "),
    ):
        job.file.write_text(job.file.read_text().replace(str(tmp_path / "model_dir"), str(path)))
        done = train(job, 2)
        assert done.returncode == 2
        assert message in done.stderr and "Traceback" not in done.stderr and "sstable" not in done.stderr
        assert not job.job_dir.exists()
