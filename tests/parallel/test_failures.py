"""A failure of one rank ends all ranks; a signal saves first."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import MODEL, Job, environment, run_program, train

MakeJob = Callable[..., Job]
RANK = "import os; rank = int(os.environ.get('OMPI_COMM_WORLD_RANK', 0))\n"

FAILS_AT_STEP = (
    RANK
    + """
import keras, tensorflow as tf

steps = iter(range(10**6))

class Fails(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            tf.py_function(self.check, [], [])
        return x

    def check(self):
        if rank == 1 and next(steps) == 5:
            raise ValueError("the fifth step is cursed")

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), Fails(), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""
)

FAILS_TO_BUILD = RANK + MODEL.replace("    model =", "    if rank == 1: {}['absent']\n    model =", 1)


def status(job: Job) -> dict:
    return json.loads((job.job_dir / "status.json").read_text())


def test_an_exception_in_a_step_of_one_rank_ends_all(make_job: MakeJob) -> None:
    job = make_job(model=FAILS_AT_STEP, train={"max_steps": 10**6})
    start = time.monotonic()
    done = train(job, 3)
    assert time.monotonic() - start < 90
    assert done.returncode == 1
    assert done.stderr.count("rank 1 failed:") == 1
    assert done.stderr.count("Traceback (most recent call last):\n  File") == 1, done.stderr
    assert "the fifth step is cursed" in done.stderr
    assert status(job)["state"] == "failed"
    assert status(job)["error"]["rank"] == 1
    reports = list((job.job_dir / "logs").glob("failure-*.txt"))
    assert len(reports) == 1
    assert "rank 1 failed" in reports[0].read_text()


def test_an_exception_in_model_fn_of_one_rank_ends_all(make_job: MakeJob) -> None:
    job = make_job(model=FAILS_TO_BUILD)
    done = train(job, 2)
    assert done.returncode == 1
    assert done.stderr.count("KeyError: 'absent'") == 1, done.stderr
    assert "rank 1" in done.stderr
    assert not job.job_dir.exists()


@pytest.mark.parametrize(("ranks", "number"), [(2, signal.SIGUSR1), (0, signal.SIGTERM)])
def test_a_signal_saves_and_the_next_start_goes_on(make_job: MakeJob, ranks: int, number: signal.Signals) -> None:
    job = make_job(train={"max_steps": 10**7}, run={"save_checkpoints_steps": 10**6})
    launcher = ["mpirun", "--oversubscribe", "-np", str(ranks)] if ranks else []
    program = [*launcher, sys.executable, "-m", "hpc_train", "train", str(job.file), "--job-dir", str(job.job_dir)]
    with subprocess.Popen(
        program, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        try:
            deadline = time.monotonic() + 90
            while not ((job.job_dir / "status.json").exists() and status(job)["step"] > 0):
                assert time.monotonic() < deadline
                assert run.poll() is None, run.communicate()[0]
                time.sleep(0.1)
            run.send_signal(number)
            out, _ = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 3, out
    step = status(job)["step"]
    assert status(job)["state"] == "stopped"
    assert [path.name for path in (job.job_dir / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    text = job.file.read_text()
    job.file.write_text(re.sub(r"max_steps: \d+", f"max_steps: {step + 5}", text))
    done = train(job, ranks)
    assert done.returncode == 0, done.stderr
    assert f"going on from step {step} " in done.stdout
    assert status(job)["step"] == step + 5


def test_a_finished_job_trains_no_more(make_job: MakeJob) -> None:
    job = make_job()
    assert train(job, 0).returncode == 0
    first = status(job)
    done = train(job, 2)
    assert done.returncode == 0
    assert "step 20 (max_steps)" in done.stdout
    assert status(job)["evaluation"] == first["evaluation"]
    assert status(job)["exports"] == first["exports"], "not exported twice"
    (job.job_dir / "metrics.jsonl").unlink()
    done = train(job, 0)
    assert "eval at step 20" in done.stdout, "an evaluation that was lost is made up for"


def test_no_process_is_left_behind() -> None:
    """The last word of this file: nothing that its tests started still runs."""
    time.sleep(1)
    mine = run_program(["ps", "-eo", "args"], Path(os.sep), 20).stdout
    assert "-m hpc_train train /tmp/pytest" not in mine
