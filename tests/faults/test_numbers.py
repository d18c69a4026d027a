"""Numbers that go bad: NaN in a batch, a replica that differs, NaN that only a checkpoint would have kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import h5py
import numpy as np
import pytest

from tests.ranks import train, train_in_turn
from tests.support import Job, variables

MakeJob = Callable[..., Job]

STEPS, BATCH, RANKS, BAD_ROW = 12, 16, 2, 100

MODEL = """
import os
import keras
import tensorflow as tf
from keras import layers

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
calls = iter(range(1, 10**6))


class Meddles(layers.Layer):
    def __init__(self, params):
        super().__init__()
        self.params = params
        self.kept = self.add_weight(shape=(2,), trainable=False, name="kept")

    def call(self, x, training=False):
        if training and self.params.get("perturb") or self.params.get("spoil"):
            tf.py_function(self.meddle, [], [])
        return x

    def meddle(self):
        if rank == 1 and next(calls) == 8:
            if self.params.get("perturb"):
                kernel = self.neighbour.kernel
                kernel.assign(kernel + 1e-6)
        if self.params.get("spoil") and next(calls) == 8:
            self.kept.assign([float("nan"), 1.0])


def build_model(params):
    meddles = Meddles(params)
    meddles.neighbour = layers.Dense(16, activation="tanh", name="first")
    model = keras.Sequential([
        keras.Input((8,)),
        meddles.neighbour,
        layers.BatchNormalization(),
        layers.Dropout(0.3),
        meddles,
        layers.Dense(4),
    ])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


def make(make_job: MakeJob, name: str, bad: bool = True, params: dict | None = None, **run: object) -> Job:
    job = make_job(
        name,
        model=MODEL,
        train_rows=[400],
        params=params or {},
        train={"max_steps": STEPS},
        run={"save_checkpoints_steps": 4, "keep_checkpoint_max": 0, **run},
        eval={"throttle_secs": 1000},
    )
    if bad:
        with h5py.File(job.folder / "data/train-0.h5", "r+") as file:
            file["x"][BAD_ROW] = np.nan
    return job


def told(out: str) -> tuple[int, int]:
    """Step and rank that the output names."""
    found = re.search(r"step (\d+): loss or gradients of rank (\d) are not finite", out)
    assert found, out
    return int(found[1]), int(found[2])


def saved_steps(job: Job) -> list[int]:
    return sorted(int(path.name[5:]) for path in (job.job_dir / "checkpoints").glob("step-*"))


def status(job: Job) -> dict:
    return json.loads((job.job_dir / "status.json").read_text())


def test_nan_in_a_batch(make_job: MakeJob) -> None:
    """Halt ends before the model is touched; skip and rollback reach the same variables, to the bit."""
    halted = make(make_job, "halt")
    done = train(halted, RANKS)
    assert done.returncode == 7, done.stderr
    step, rank = told(done.stderr)
    assert done.stderr.count("not finite") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert status(halted)["state"] == "failed"
    assert status(halted)["error"]["rank"] == rank
    assert saved_steps(halted) == [n for n in (4, 8, 12) if n < step]

    jobs = {policy: make(make_job, policy, on_nan=policy) for policy in ("skip", "rollback")}
    done = train_in_turn(list(jobs.values()), RANKS)
    assert done.returncode == 0, done.stderr
    results = {}
    for (policy, job), out in zip(jobs.items(), done.stdout.split("next job\n"), strict=False):
        assert told(out) == (step, rank)
        assert saved_steps(job) == ([0] if policy == "rollback" else []) + [4, 8, 12]
        results[policy] = variables(job.job_dir, STEPS)
        assert int(results[policy]["optimizer/adam.iteration"]) == STEPS - 1
        assert all(np.isfinite(array).all() for array in results[policy].values())
    assert f"on_nan: {policy}" in out
    assert f"step {step}: the batch is left out" in out
    for name, array in results["skip"].items():
        np.testing.assert_array_equal(array, results["rollback"][name], err_msg=name)


def test_rollback_that_does_not_help_ends_the_job(make_job: MakeJob) -> None:
    job = make(make_job, "hopeless", on_nan="rollback", save_checkpoints_steps=1000)
    job.file.write_text(job.file.read_text().replace("max_steps: 12", "max_steps: 1000"))
    with h5py.File(job.folder / "data/train-0.h5", "r+") as file:
        file["x"][:] = np.nan
    done = train(job, 0)
    assert done.returncode == 7, done.stderr
    assert "as were the 20 steps before" in done.stderr
    assert saved_steps(job) == [0]


def test_a_replica_that_differs_is_named(make_job: MakeJob) -> None:
    sound = make(make_job, "sound", bad=False, check_replicas_steps=1)
    job = make(make_job, "perturbed", bad=False, params={"perturb": True}, check_replicas_steps=3)
    done = train_in_turn([sound, job], 3)
    assert done.returncode == 7, done.stderr
    assert done.stdout.count("next job") == 1, "the sound one has ended well"
    assert status(sound)["state"] == "succeeded"
    assert "the variables of rank 1 differ from those of most ranks after step 9" in done.stderr, done.stderr
    assert "first model/" in done.stderr
    assert status(job)["error"]["rank"] == 1


def test_nan_in_a_checkpoint_is_never_committed(make_job: MakeJob) -> None:
    """Here neither loss nor gradients tell: the variable is the layer's own affair."""
    job = make(make_job, "spoilt", bad=False, params={"spoil": True})
    done = train(job, 0)
    assert done.returncode == 7, done.stderr
    assert re.search(r"not committed: model variable \S*kept holds NaN", done.stderr), done.stderr
    assert saved_steps(job) == [4]


@pytest.mark.parametrize("policy", ["hault"])
def test_other_policies_are_refused(make_job: MakeJob, policy: str) -> None:
    job = make(make_job, "typo", on_nan=policy)
    done = train(job, 0)
    assert done.returncode == 2
    assert (
        "run.on_nan: 'hault' is not allowed; allowed: 'halt', 'skip' or 'rollback'; did you mean `halt`?" in done.stderr
    )
