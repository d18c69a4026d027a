"""A dedicated chief: the job with one is the job without, and its workers do not wait."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.forks import forks
from tests.ranks import train, train_in_turn
from tests.support import LIMIT_SECS, MODEL, Job, environment, merge, records_of, variables, wait_for

MakeJob = Callable[..., Job]
DEDICATED = {"chief": "dedicated"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}

STATEFUL = MODEL.replace(
    "        layers.Dense(4),",
    "        layers.BatchNormalization(),\n        layers.Dropout(0.2),\n        layers.Dense(4),",
)
RANK = "import os; rank = int(os.environ.get('OMPI_COMM_WORLD_RANK', 0))\n"

SLOW = MODEL.replace(
    "def build_model",
    """
import time, tensorflow as tf

class Slow(keras.layers.Layer):
    def call(self, x, training=False):
        if not training:
            tf.py_function(lambda: time.sleep(@SECS@), [], [])
        return x

def build_model""",
).replace("        layers.Dense(16", "        Slow(),\n        layers.Dense(16")

BAD_NUMBERS = STATEFUL.replace(
    "def build_model",
    """
import tensorflow as tf
calls = 0

class Bad(keras.layers.Layer):
    def call(self, x, training=False):
        return tf.ensure_shape(tf.py_function(self.once, [x], x.dtype), x.shape) if training else x

    def once(self, x):
        global calls
        calls += 1
        return x * float("nan") if calls == 15 else x

    def compute_output_shape(self, shape):
        return shape

def build_model""",
).replace("        layers.Dense(16", "        Bad(),\n        layers.Dense(16")

FAILS = RANK + MODEL.replace(
    "def build_model",
    """
import tensorflow as tf
calls = iter(range(10**6))

class Fails(keras.layers.Layer):
    def call(self, x, training=False):
        if bool(training) == (WHEN == "training"):
            tf.py_function(self.check, [], [])
        return x

    def check(self):
        if rank == (2 if WHEN == "training" else 0) and next(calls) == 9:
            raise ValueError("this batch is cursed")

def build_model""",
).replace("        layers.Dense(16", "        Fails(),\n        layers.Dense(16")

HOOKS = (
    RANK
    + """
import json
import hpc_train as ht

folder = os.path.dirname(os.path.abspath(__file__))

class Hears(ht.Hook):
    def begin(self, context):
        self.chief = context.is_chief
        open(f"{folder}/heard-{rank}", "w").close()

    def after_evaluate(self, step, name, metrics):
        with open(f"{folder}/heard-{rank}", "a") as file:
            file.write(json.dumps([step, name, metrics["loss"], self.chief]) + "\\n")

    def end(self, step):
        open(f"{folder}/ended-{rank}", "w").write(str(step))

def make():
    return Hears()
"""
)


def records(job: Job, kind: str) -> list[dict[str, Any]]:
    return records_of(job.job_dir, kind)


def status(job: Job) -> dict[str, Any]:
    return json.loads((job.job_dir / "status.json").read_text())


def change(job: Job, **changes: Any) -> None:
    job.file.write_text(yaml.safe_dump(merge(yaml.safe_load(job.file.read_text()), changes)))


def assert_same(one: Job, two: Job, step: int) -> None:
    ours, theirs = variables(one.job_dir, step), variables(two.job_dir, step)
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=f"{two.folder.name} {step} {name}")


@pytest.mark.parametrize("workers", [1, 3])
def test_with_and_without_are_the_same_job(workers: int, make_job: MakeJob) -> None:
    """To the bit, whole or in two halves, with a rollback, and for a function that makes the data, too."""
    common: dict[str, Any] = {"model": STATEFUL, "eval": {"eval_every_checkpoint": True}}
    back = {**common, "model": BAD_NUMBERS, "run": {"on_nan": "rollback"}}

    def make(name: str, run: dict[str, Any]) -> list[Job]:
        return [
            make_job(f"{name}-whole", **merge(common, {"run": run})),
            make_job(f"{name}-halves", **merge(common, {"run": run, "train": {"max_steps": 10}})),
            make_job(f"{name}-back", **merge(back, {"run": run, "train": {"max_steps": 30}})),
        ]

    without, dedicated = make("without", {}), make("dedicated", DEDICATED)
    done = train_in_turn(without[:1] + without[2:], workers, **ONE_THREAD)
    assert done.returncode == 0, done.stderr
    done = train_in_turn(dedicated, workers + 1, **ONE_THREAD)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("back at the checkpoint of step 10") == 1
    change(dedicated[1], train={"max_steps": 20})
    done = train(dedicated[1], workers + 1, **ONE_THREAD)
    assert done.returncode == 0, done.stderr
    assert "going on from step 10" in done.stdout

    whole, halves, rolled = dedicated
    for step in (10, 20):
        assert_same(without[0], whole, step)
    assert_same(whole, halves, 20)
    for step in (10, 20, 30):
        assert_same(without[2], rolled, step)
    names = variables(whole.job_dir, 20)
    assert any("moving_variance" in name for name in names)
    assert any("seed_generator_state" in name for name in names)
    for one, two in ((without[0], whole), (without[0], halves), (without[2], rolled)):
        ours, theirs = records(one, "eval"), records(two, "eval")
        assert [r["step"] for r in ours] == sorted({r["step"] for r in theirs})
        for record in ours:
            (same,) = {r["loss"] for r in theirs if r["step"] == record["step"]}
            assert same == pytest.approx(record["loss"], abs=1e-6)
            assert all(
                r["accuracy"] == pytest.approx(record["accuracy"]) for r in theirs if r["step"] == record["step"]
            )
    (train_record, *_) = records(whole, "train")
    assert [rate is None for rate in train_record["by_rank"]["examples_per_sec"]] == [True, *[False] * workers]
    (start,) = records(whole, "first_step")
    assert {"data", "model", "exchange", "first step"} <= set(start["phases"])
    assert status(whole)["ranks"] == workers + 1
    assert (status(whole)["state"], status(whole)["step"]) == ("succeeded", 20)


def test_slow_evaluation_holds_nobody_up_and_is_not_skipped(make_job: MakeJob) -> None:
    """0.6 s for each evaluation, and a checkpoint each 5 steps, of which one alone is kept."""
    model = SLOW.replace("@SECS@", "0.1")
    changes: dict[str, Any] = {
        "model": model,
        "test_rows": [96],
        "run": {**DEDICATED, "save_checkpoints_steps": 5, "keep_checkpoint_max": 1, "best_metric": None},
        "train": {"max_steps": 40, "hooks": ["hooks.py:make"]},
    }
    every = make_job("every", **merge(changes, {"eval": {"eval_every_checkpoint": True}}))
    newest = make_job("newest", **changes)
    stops = make_job(
        "stops",
        **merge(
            changes,
            {
                "train": {
                    "max_steps": 10**6,
                    "early_stopping": {
                        "stop_if_higher": {"metric_name": "loss", "threshold": 0, "min_steps": 12, "run_every_steps": 1}
                    },
                }
            },
        ),
    )
    for job in (every, newest, stops):
        (job.folder / "hooks.py").write_text(HOOKS)
    done = train_in_turn([every, newest, stops], 3)
    assert done.returncode == 0, done.stderr

    found = records(every, "eval")
    assert [record["step"] for record in found] == list(range(5, 41, 5))
    assert max(record["lag_steps"] for record in found[:-1]) > 0, "training went on meanwhile"
    assert found[-1]["lag_steps"] == 0
    assert all(record["lag_secs"] > 0 for record in found)
    assert [path.name for path in (every.job_dir / "checkpoints").glob("step-*")] == ["step-00000040"]

    few = [record["step"] for record in records(newest, "eval")]
    assert few == sorted(set(few))
    assert few[-1] == 40
    assert len(few) < 8, "those that came meanwhile are passed over"

    said = status(stops)
    assert said["stopped_early"]["step"] == said["step"]
    assert records(stops, "eval")[-1]["step"] == said["step"]
    for job in (every, newest, stops):
        last = status(job)["step"]
        in_training = [[r["step"], None, r["loss"]] for r in records(job, "eval")]
        for rank in (1, 2):
            heard = [json.loads(line) for line in (job.folder / f"heard-{rank}").read_text().splitlines()]
            assert all(is_chief == (rank == 1) for *_, is_chief in heard)
            assert [rest for *rest, _ in heard] == in_training[: len(heard)]
            assert heard or job is not stops
            assert (job.folder / f"ended-{rank}").read_text() == str(last)
        assert (job.folder / "heard-1").read_text().count("\n") == (job.folder / "heard-2").read_text().count("\n")
        assert not (job.folder / "heard-0").exists(), "hooks of training are where training is"


@pytest.mark.parametrize(("when", "failing"), [("training", 2), ("evaluation", 0)])
def test_an_exception_ends_all_ranks_with_one_report(make_job: MakeJob, when: str, failing: int) -> None:
    job = make_job(model=f"WHEN = {when!r}\n{FAILS}", test_rows=[320], run=DEDICATED, train={"max_steps": 10**6})
    done = train(job, 3)
    assert done.returncode == 1, done.stderr
    assert re.findall(r"rank (\d) failed:", done.stderr) == [str(failing)], done.stderr
    assert done.stderr.count("this batch is cursed") >= 1
    assert (status(job)["state"], status(job)["error"]["rank"]) == ("failed", failing)
    assert len(list((job.job_dir / "logs").glob("failure-*.txt"))) == 1


def test_a_signal_saves_and_the_job_goes_on(make_job: MakeJob) -> None:
    """SIGTERM, of which mpirun makes an end of its own: `launch` asks the ranks by SIGUSR1."""
    whole = 10**6
    job = make_job(model=STATEFUL, run={**DEDICATED, "save_checkpoints_steps": whole}, train={"max_steps": whole})
    command = [sys.executable, "-m", "hpc_train", "launch", "-n", "3", str(job.file), "--job-dir", str(job.job_dir)]
    with open(job.folder / "out", "w") as out, open(job.folder / "err", "w") as err:
        process = subprocess.Popen(
            command,
            cwd=job.folder,
            env=environment(**forks(environment())),
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        trains = lambda: read_json(job.job_dir / "status.json").get("step", 0) >= 3
        wait_for(lambda: trains() or process.poll() is not None, lambda: (job.folder / "err").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_SECS) == 4, (job.folder / "err").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    stopped = status(job)
    assert stopped["state"] == "stopped"
    assert f"stopped after step {stopped['step']}, which is saved" in (job.folder / "out").read_text()
    change(job, train={"max_steps": stopped["step"] + 5})
    done = train(job, 3)
    assert done.returncode == 0, done.stderr
    assert f"going on from step {stopped['step']}" in done.stdout
    assert (status(job)["state"], status(job)["step"]) == ("succeeded", stopped["step"] + 5)


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def test_one_rank_is_told_before_work_begins(make_job: MakeJob) -> None:
    job = make_job(run=DEDICATED)
    for ranks in (0, 1):
        done = train(job, ranks)
        assert done.returncode == 2
        assert "run.chief: dedicated leaves no rank to train where there is 1; start at least 2 ranks" in done.stderr
        assert not job.job_dir.exists()
