"""A rank that dies ends the job within seconds and is named; `--max-restarts` goes on from the last checkpoint."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import numpy as np
import pytest

from hpc_train.jobs.cancel import cancel
from hpc_train.jobs.inspect import inspect_job
from tests.faults.launched import KILL, MPIRUN, STUCK, Launched, faulty, processes
from tests.ranks import train
from tests.support import Job, interrupt, variables, wait_for

MakeJob = Callable[..., Job]
HOST = os.uname().nodename
LONG = {"train": {"max_steps": 10**6}, "run": {"save_checkpoints_steps": 10**6}}
EVAL = {"throttle_secs": 10**6}
SHORT = {"train": {"max_steps": 40}, "run": {"save_checkpoints_steps": 10}, "eval": EVAL}


def test_a_killed_chief_ends_all_and_is_named(make_job: MakeJob) -> None:
    job = make_job(model=faulty(KILL, rank=0), **SHORT)
    with Launched(job, anew=True) as run:
        run.wait_for("struck-0")
        assert run.end() == 128 + signal.SIGKILL
    assert f"hpc-train: rank 0 on {HOST} was killed by SIGKILL\n" in run.err
    assert "mpirun" not in run.err, "its own words are not shown"
    assert run.status["state"] == "failed"
    error = run.status["error"]
    assert (error["rank"], error["signal"]) == (0, "SIGKILL")
    assert f"rank 0 on {HOST} was killed by SIGKILL" in error["message"]


def test_after_each_kill_training_goes_on_to_the_same_weights(make_job: MakeJob) -> None:
    """The chief is killed in the first run, the other rank in the second."""
    whole = make_job("whole", model=faulty("pass"), **SHORT)
    assert train(whole, 2).returncode == 0
    job = make_job("killed", model=faulty(KILL, rank="restarts", call=15, runs="[0, 1]"), **SHORT)
    with Launched(job, "--max-restarts", "2", HPC_TRAIN_RESTARTS="0") as run:
        assert run.end() == 0, run.err
    for rank, step, when in ((0, 10, "at once"), (1, 20, "in 2 s")):
        killed = f"rank {rank} on {HOST} was killed by SIGKILL; restart {rank + 1} of 2 {when}"
        assert f"hpc-train: {killed}, from step {step}\n" in run.err
        assert f"going on from step {step} " in run.out
    assert len(run.err.splitlines()) == 3, run.err  # that it starts, and two restarts
    assert (run.status["state"], run.status["step"]) == ("succeeded", 40)
    assert "error" not in run.status
    wanted, found = variables(whole.job_dir, 40), variables(job.job_dir, 40)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(("code", "exit_code", "said"), [(0, 1, "left without"), (7, 7, "left with code 7 without")])
def test_a_rank_that_leaves_without_a_word_is_named(make_job: MakeJob, code: int, exit_code: int, said: str) -> None:
    job = make_job(model=faulty(f"os._exit({code})"), **SHORT)
    with Launched(job) as run:
        run.wait_for("struck-0")
        assert run.end() == exit_code
    assert re.search(rf"(?m)^hpc-train: rank 1( on {HOST})? {said} finishing$", run.err), run.err
    assert run.status["state"] == "failed"
    assert run.status["error"]["rank"] == 1


def test_the_budget_ends_a_deterministic_crash(make_job: MakeJob) -> None:
    model = faulty('raise ValueError("the fifth batch is cursed")', rank=0, call=5, runs="range(9)")
    job = make_job(model=model, **{**LONG, "run": {"save_checkpoints_steps": 2}, "eval": EVAL})
    with Launched(job, "--max-restarts", "1", ranks=1) as run:
        assert run.end() == 1
    assert "ValueError: the fifth batch is cursed" in run.err
    assert "hpc-train: the job ended with exit code 1; restart 1 of 1 at once, from step 4\n" in run.err
    assert run.err.endswith("hpc-train: the job ended with exit code 1; not restarted: --max-restarts allows 1\n")
    assert run.status["state"] == "failed"


def test_until_it_is_started_again_the_job_is_not_over_and_can_be_cancelled(make_job: MakeJob) -> None:
    model = faulty(KILL, rank=0, call=5, runs="range(9)")
    job = make_job(model=model, **{**LONG, "run": {"save_checkpoints_steps": 2}, "eval": EVAL})
    with Launched(job, "--max-restarts", "9", ranks=1) as run:
        for restart in (1, 2, 3):
            wait_for(lambda: f"restart {restart} of 9" in run.err, lambda: str(run))
            found = inspect_job(job.job_dir)
            assert (found.state, found.exit_code) == ("RUNNING", None), found
        assert cancel(job.job_dir, save=False).before.state == "RUNNING"
        assert run.end() in (128 + signal.SIGKILL, 130), run.err
    assert "restart 4" not in run.err
    assert inspect_job(job.job_dir).state == "CANCELLED"


def test_restarts_that_make_no_progress_end_early(make_job: MakeJob) -> None:
    job = make_job(model=f"import os, signal\n{KILL}", **LONG)
    with Launched(job, "--max-restarts", "9", ranks=1) as run:
        assert run.end() == 128 + signal.SIGKILL
    assert run.err.count("was killed by SIGKILL") == 4
    assert run.err.endswith("not restarted: 3 restarts in a row have not come beyond the beginning\n")


def test_ctrl_c_ends_the_wait_for_a_restart(make_job: MakeJob) -> None:
    job = make_job(model=f"import os, signal\n{KILL}", **LONG)
    with Launched(job, "--max-restarts", "9", ranks=1) as run:
        wait_for(lambda: "restart 3 of 9 in 4 s" in run.err, lambda: str(run))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 128 + signal.SIGKILL
    assert run.err.endswith("hpc-train: not restarted: it was asked to stop\n")


@pytest.mark.parametrize(
    ("number", "ranks", "code"), [(signal.SIGUSR1, 2, 3), (signal.SIGTERM, 1, 4), (signal.SIGINT, 1, 5)]
)
def test_a_job_that_was_asked_to_stop_is_not_started_again(
    make_job: MakeJob, number: signal.Signals, ranks: int, code: int
) -> None:
    job = make_job(model=faulty("pass"), **LONG)
    with Launched(job, "--max-restarts", "9", ranks=ranks) as run:
        run.wait_for("began-0")
        run.process.send_signal(number)
        assert run.end() == code, run.err
    assert run.status["state"] == "stopped"
    assert run.status["step"] > 0
    assert not (job.folder / "began-1").exists()


@pytest.mark.parametrize("stuck", [False, True])
def test_a_second_ctrl_c_ends_all_at_once(make_job: MakeJob, stuck: bool) -> None:
    """Also where the ranks cannot come to the end of their step."""
    job = make_job(model=faulty(STUCK if stuck else "pass", pause=0 if stuck else 60), **LONG)
    with Launched(job, "--max-restarts", "9") as run:
        run.wait_for("struck-0" if stuck else "began-0")
        run.process.send_signal(signal.SIGINT)
        time.sleep(1)  # two signals at one moment are one
        assert run.process.poll() is None, run.err
        interrupt(run.process)
        assert run.end() == 130
    assert run.err.endswith("hpc-train: interrupted twice: ended at once; what was saved before stays\n")
    assert not processes(job.folder)
    assert run.status["state"] == "failed"


def test_ranks_whose_mpirun_was_killed_are_not_left(make_job: MakeJob) -> None:
    job = make_job(model=faulty(STUCK), **LONG)
    with Launched(job, anew=True) as run:
        run.wait_for("struck-0")
        pids = {rank: pid for pid, rank in processes(job.folder).items()}
        assert sorted(pids) == [MPIRUN, 0, 1]
        os.kill(pids[MPIRUN], signal.SIGKILL)
        assert run.end() == 128 + signal.SIGKILL
    assert "hpc-train: the job ended with exit code 137\n" in run.err
    assert run.status["state"] == "failed"
