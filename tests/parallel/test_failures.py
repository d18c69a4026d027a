"""A failure of one rank ends all ranks; a signal saves first."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hpc_train.jobdir.job_dir import JobDir
from tests.forks import forked
from tests.ranks import train, train_in_turn
from tests.support import FINAL, LIMIT_SECS, MODEL, Job, environment, mpirun, run_program, variables, wait_for

MakeJob = Callable[..., Job]
LONG = {"train": {"max_steps": 10**7}, "run": {"save_checkpoints_steps": 10**6}}
RANK = "import os; rank = int(os.environ.get('OMPI_COMM_WORLD_RANK', 0))\n"

FAILS = (
    RANK
    + """
import hpc_train as ht, keras, tensorflow as tf

calls = iter(range(10**6))

class Fails(keras.layers.Layer):
    def call(self, x, training=False):
        if WHEN != "hook" and bool(training) == (WHEN == "training"):
            tf.py_function(self.check, [], [])
        return x

    def check(self):
        if rank == 1 and next(calls) == 5:
            raise ValueError("the fifth batch is cursed")

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), Fails(), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

class OnTheChief(ht.Hook):
    chief_only = True

    def after_evaluate(self, step, name, metrics):
        if WHEN == "hook":
            raise ValueError("the chief dislikes the loss")

def make_hook():
    return OnTheChief()
"""
)

FAILS_TO_BUILD = RANK + MODEL.replace("    model =", "    if rank == 1: {}['absent']\n    model =", 1)


LEAVES_WHILE_BUILDING = RANK + MODEL.replace(
    "    model =", "    if rank == 1: raise SystemExit('no GPU here')\n    model =", 1
)


STATEFUL = MODEL.replace(
    "        layers.Dense(4),",
    "        layers.BatchNormalization(),\n        layers.Dropout(0.2),\n        layers.Dense(4),",
)


def status(job: Job) -> dict:
    return json.loads((job.job_dir / "status.json").read_text())


@pytest.mark.parametrize(
    ("when", "ranks", "failing", "said"),
    [
        ("training", 3, 1, "the fifth batch is cursed"),
        ("evaluation", 2, 1, "the fifth batch is cursed"),
        ("hook", 2, 0, "the chief dislikes the loss"),
    ],
)
def test_an_exception_on_one_rank_ends_all(make_job: MakeJob, when: str, ranks: int, failing: int, said: str) -> None:
    job = make_job(
        model=f"WHEN = {when!r}\n{FAILS}",
        test_rows=[1000],
        data={"eval": {"batch_size": 4}},
        train={"max_steps": 10**6 if when == "training" else 4},
        eval={"hooks": ["model.py:make_hook"]},
    )
    done = train(job, ranks)
    assert done.returncode == 1
    assert done.stderr.count(f"rank {failing} failed:") == 1, done.stderr
    assert len(re.findall(r"rank \d failed:", done.stderr)) == 1, done.stderr
    tracebacks = done.stderr.count("Traceback (most recent call last):\n  File")
    assert tracebacks == (2 if when == "hook" else 1), f"a hook's own, and where it was called: {done.stderr}"
    assert said in done.stderr
    assert status(job)["state"] == "failed"
    assert status(job)["error"]["rank"] == failing
    reports = list((job.job_dir / "logs").glob("failure-*.txt"))
    assert len(reports) == 1
    assert f"rank {failing} failed" in reports[0].read_text()


def test_an_exception_before_training_ends_all(make_job: MakeJob) -> None:
    for model, said in ((FAILS_TO_BUILD, "KeyError: 'absent'"), (LEAVES_WHILE_BUILDING, "no GPU here")):
        job = make_job(said[:2], model=model)
        done = train(job, 2)
        assert done.returncode == 1
        assert done.stderr.count(said) == 1, done.stderr
        assert not job.job_dir.exists()
        if model == FAILS_TO_BUILD:
            assert "rank 1 failed:" in done.stderr


def test_a_failure_where_the_job_dir_has_vanished(make_job: MakeJob) -> None:
    model = f"WHEN = 'training'\n{FAILS}".replace(
        "raise ValueError", "__import__('shutil').rmtree('run'); raise ValueError"
    )
    job = make_job(model=model, train={"max_steps": 10**6})
    done = train(job, 2)
    assert done.returncode == 1
    assert "rank 1 failed:" in done.stderr
    assert "the fifth batch is cursed" in done.stderr


def test_the_job_file_is_needed_on_the_chief_alone(make_job: MakeJob, tmp_path: Path) -> None:
    """Relative to rank 1's folder there is no such file; it gets the job from rank 0."""
    job = make_job()
    (tmp_path / "elsewhere").mkdir()
    rank = forked(["-m", "hpc_train", "train", "job.yaml", "--job-dir", job.job_dir], environment())
    ranks = ["-np", "1", "-wdir", str(job.folder), *rank, ":", "-np", "1", "-wdir", str(tmp_path / "elsewhere"), *rank]
    done = run_program(["mpirun", "--oversubscribe", *ranks], tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_signal_saves_and_the_next_start_goes_on(make_job: MakeJob) -> None:
    """To the bit, though the step was nobody's plan: batch-norm averages and dropout are those of a single run."""
    job = make_job(model=STATEFUL, **LONG)
    step = stop(job, 2, signal.SIGUSR1, 3)
    straight = make_job("straight", model=STATEFUL, train={"max_steps": step + 5}, run=LONG["run"])
    done = train_in_turn([job, straight], 2)
    check_goes_on(job, done, step)
    resumed, uninterrupted = (variables(one.job_dir, step + 5) for one in (job, straight))
    assert any("moving_mean" in name for name in resumed)
    for name, array in uninterrupted.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)


def test_term_and_ctrl_c_save_and_the_next_start_goes_on(make_job: MakeJob) -> None:
    """Each signal has one process, and both run at once."""
    codes = {signal.SIGTERM: 4, signal.SIGINT: 5}
    jobs = [make_job(number.name, model=STATEFUL, **LONG) for number in codes]
    with ThreadPoolExecutor(2) as pool:
        steps = list(pool.map(stop, jobs, [0, 0], codes, codes.values()))
        for job, done, step in zip(jobs, pool.map(train, jobs), steps, strict=True):
            check_goes_on(job, done, step)


def stop(job: Job, ranks: int, number: signal.Signals, code: int) -> int:
    """Starts the job and sends it the signal once it trains; the step it has saved, 5 steps after which it ends now."""
    train = forked(["-m", "hpc_train", "train", job.file, "--job-dir", job.job_dir], environment())
    with subprocess.Popen(
        [*mpirun(ranks), *train], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        try:
            trains = lambda: (job.job_dir / "status.json").exists() and status(job)["step"] > 0
            wait_for(lambda: trains() or run.poll() is not None, "a step")
            run.send_signal(number)
            out, _ = run.communicate(timeout=LIMIT_SECS)
        finally:
            run.kill()
    assert run.returncode == code, out
    assert f"stopped by {number.name} after step" in out
    step: int = status(job)["step"]
    assert status(job)["state"] == "stopped"
    assert [path.name for path in (job.job_dir / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    text = job.file.read_text()
    job.file.write_text(re.sub(r"max_steps: \d+", f"max_steps: {step + 5}", text))
    return step


def check_goes_on(job: Job, done: subprocess.CompletedProcess[str], step: int) -> None:
    assert done.returncode == 0, done.stderr
    assert f"going on from step {step} " in done.stdout
    assert status(job)["step"] == step + 5


def test_a_finished_job_trains_no_more_and_old_results_are_not_taken_for_new(make_job: MakeJob) -> None:
    job = make_job(params={"learning_rate": 0.05}, eval=FINAL)
    assert train(job, 0).returncode == 0
    first = status(job)
    done = train(job, 2)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"nothing is left to train: {job.job_dir} is at step 20 of 20 (loss ")
    assert status(job) == first, "nothing was written"
    job.file.write_text(job.file.read_text().replace("max_steps: 20", "max_steps: 20\n  saving_listeners: []"))
    assert train(job, 2).stdout == done.stdout, "which asks for the same"
    job.file.write_text(job.file.read_text().replace("learning_rate: 0.05", "learning_rate: 0.06"))
    done = train(job, 2)
    assert done.returncode == 0
    assert "step 20 (max_steps)" in done.stdout
    assert "changed without effect: params.learning_rate, optimizer.learning_rate: nothing is left" in done.stdout
    assert status(job)["evaluation"] == pytest.approx(first["evaluation"])
    assert status(job)["exports"] == first["exports"], "not exported twice"
    assert JobDir(job.job_dir).job().value["params"] == {"learning_rate": 0.05}, "what it was trained with"
    shutil.rmtree(job.job_dir / "checkpoints")
    job.file.write_text(job.file.read_text().replace("learning_rate: 0.06", "learning_rate: 0.00001"))
    assert train(job, 0).returncode == 0
    assert status(job)["evaluation"]["accuracy"] < first["evaluation"]["accuracy"] - 0.2
    assert status(job)["exports"] != first["exports"]


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    """The last word of this file: nothing that its tests started still runs."""

    def mine() -> list[str]:
        running = run_program(["ps", "-eo", "args"], Path(os.sep)).stdout
        return [line for line in running.splitlines() if "-m hpc_train train" in line and str(tmp_path.parent) in line]

    wait_for(lambda: not mine(), mine)
