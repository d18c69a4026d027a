"""Numbers that go bad: NaN in a batch, a replica that differs, NaN that only a checkpoint would have kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import h5py
import numpy as np
import pytest

from tests.ranks import train, train_in_turn
from tests.support import Job, records_of, variables

MakeJob = Callable[..., Job]

STEPS, RANKS = 12, 2
BAD_ROW, BAD_STEP, BAD_RANK = 150, 5, 1
"""In order, two ranks read 16 rows each a step: rank 1 reads row 150 in step 5."""
NOT_FINITE = "loss or gradients of rank 1 are not finite (NaN or infinity)"

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


class Curses(layers.Layer):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def call(self, x, training=False):
        if training:
            x = tf.ensure_shape(tf.py_function(self.curse, [x], tf.float32), x.shape)
        return x

    def curse(self, x):
        return x * float("nan") if rank == 1 and next(calls) in self.at else x


def build_model(params):
    meddles = Meddles(params)
    meddles.neighbour = layers.Dense(16, activation="tanh", name="first")
    model = keras.Sequential([
        keras.Input((8,)),
        meddles.neighbour,
        layers.BatchNormalization(),
        layers.Dropout(0.3),
        meddles,
        *([Curses(params["curse"])] if "curse" in params else []),
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
        data={"train": {"shuffle": "none"}},
        params=params or {},
        train={"max_steps": STEPS},
        run={"save_checkpoints_steps": 4, "keep_checkpoint_max": 0, "save_summary_steps": 1, **run},
        eval={"throttle_secs": 1000},
    )
    if bad:
        with h5py.File(job.folder / "data/train-0.h5", "r+") as file:
            file["x"][BAD_ROW] = np.nan
    return job


def told(out: str, *words: str) -> list[str]:
    """The lines of `out` that have all `words`."""
    return [line for line in out.splitlines() if all(word in line for word in words)]


def saved_steps(job: Job) -> list[int]:
    return sorted(int(path.name[5:]) for path in (job.job_dir / "checkpoints").glob("step-*"))


def status(job: Job) -> dict:
    return json.loads((job.job_dir / "status.json").read_text())


def test_nan_in_a_batch(make_job: MakeJob) -> None:
    """Halt ends before the model is touched; skip and rollback go on to the same variables, to the bit."""
    halted = make(make_job, "halt")
    done = train(halted, RANKS)
    assert done.returncode == 7, done.stderr
    (error,) = told(done.stderr, "hpc-train: error: ")
    assert f"step {BAD_STEP}: {NOT_FINITE}; training ends before they reach the model (on_nan: halt)" in error
    assert "not finite" not in done.stdout
    assert "Traceback" not in done.stderr
    assert status(halted)["state"] == "failed"
    assert status(halted)["error"]["rank"] == BAD_RANK
    assert saved_steps(halted) == [4]

    jobs = {policy: make(make_job, policy, on_nan=policy) for policy in ("skip", "rollback")}
    done = train_in_turn(list(jobs.values()), RANKS)
    assert done.returncode == 0, done.stderr
    out = dict(zip(jobs, done.stdout.split("next job\n"), strict=False))
    went_on = {
        "skip": f"warning: step {BAD_STEP}: {NOT_FINITE}; the step is left out (on_nan: skip)",
        "rollback": f"warning: step {BAD_STEP}: {NOT_FINITE}; going back to the last checkpoint, this batch left out "
        "(on_nan: rollback)",
    }
    losses, results = {}, {}
    for policy, job in jobs.items():
        assert told(out[policy], "not finite") == [went_on[policy]], out[policy]
        assert (status(job)["state"], status(job)["step"]) == ("succeeded", STEPS)
        assert "error" not in status(job)
        losses[policy] = [(record["step"], record["loss"]) for record in records_of(job.job_dir, "train")]
        results[policy] = variables(job.job_dir, STEPS)
        assert int(results[policy]["optimizer/adam.iteration"]) == STEPS - 1, "one batch has been left out"
        assert all(np.isfinite(array).all() for array in results[policy].values())

    assert saved_steps(jobs["skip"]) == [4, 8, 12]
    assert [step for step, _ in losses["skip"]] == list(range(1, STEPS + 1))
    assert [step for step, loss in losses["skip"] if loss is None or not np.isfinite(loss)] == [BAD_STEP]
    assert not told(out["skip"], "the batch is left out")

    assert saved_steps(jobs["rollback"]) == [0, 4, 8, 12]
    assert told(out["rollback"], "back at the checkpoint") == ["back at the checkpoint of step 4"]
    assert told(out["rollback"], "the batch is left out") == [f"step {BAD_STEP}: the batch is left out"]
    assert dict(losses["rollback"]).keys() == dict(losses["skip"]).keys()
    for step, loss in losses["skip"]:
        assert step == BAD_STEP or dict(losses["rollback"])[step] == loss, step
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


def test_rollbacks_that_do_not_get_any_further_end_the_job(make_job: MakeJob) -> None:
    """Each time from the beginning the numbers go bad one step sooner: in step 10, 9, 8, 7, 6 and 5."""
    bad = [10, 9, 8, 7, 6, 5]
    calls = [sum(bad[: n + 1]) for n in range(len(bad))]
    job = make(make_job, "backwards", False, {"curse": calls}, on_nan="rollback", save_checkpoints_steps=1000)
    done = train(job, RANKS)
    assert done.returncode == 7, done.stdout + done.stderr
    ended = f"step 5: {NOT_FINITE}; training ends, having gone back 5 times without getting any further"
    assert told(done.stderr, "hpc-train: error: ") == [f"hpc-train: error: {ended}"]
    assert "Traceback" not in done.stderr
    assert told(done.stdout, "not finite") == [
        f"warning: step {step}: {NOT_FINITE}; going back to the last checkpoint, this batch left out (on_nan: rollback)"
        for step in bad[:-1]
    ]
    assert told(done.stdout, "back at the checkpoint") == ["back at the checkpoint of step 0"] * 5
    assert [record.get("reason") for record in records_of(job.job_dir, "start")] == [None, *["on_nan: rollback"] * 5]
    assert saved_steps(job) == [0]
    assert (status(job)["state"], status(job)["step"]) == ("failed", 5)
    error = status(job)["error"]
    assert (error["rank"], error["message"]) == (BAD_RANK, ended)
    assert "step" in error["doing"]


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
