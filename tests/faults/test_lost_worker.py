"""`run.on_lost_worker: continue`: an asynchronous job that goes on where one of its workers is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.faults.launched import Launched
from tests.faults.test_async import EVAL, HOST, TELLS_ITS_PID, TWO_SERVERS, change, newest
from tests.support import SOAK, Job, is_gone, records_of, variables, wait_for

MakeJob = Callable[..., Job]
EXIT_KILLED = 128 + signal.SIGKILL
RANKS = 4
"""Two servers, the chief among them, and two workers."""
TRIES = int(os.environ.get("LOST_WORKERS", "10"))

SLOW = """
import os, time
from pathlib import Path
import keras, tensorflow as tf

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))

class Slow(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            tf.py_function(self.step, [], [])
        return x

    def step(self):
        time.sleep(0.02)
        while Path(f"stuck-{rank}").exists():
            Path(f"holds-{rank}").touch()
            time.sleep(0.02)

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), Slow(), keras.layers.Dense(16, "tanh"), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""
"""A worker that finds stuck-<rank> holds its ticket, and says so, until it is killed."""


def pid_of(job: Job, rank: int) -> int:
    path = job.folder / f"pid-{rank}"
    wait_for(path.exists, str(path))
    return int(path.read_text())


def steps_of(run: Launched, rank: int) -> int:
    return run.status.get("steps_by_rank", {}).get(str(rank), 0)


def test_a_job_goes_on_without_a_worker_and_its_next_start_has_it_again(make_job: MakeJob) -> None:
    """It dies with a ticket; a signal stops the job. In the next start another one does, with the last ticket."""
    job = make_job(
        model=SLOW + TELLS_ITS_PID,
        run={
            **TWO_SERVERS,
            "on_lost_worker": "continue",
            "max_staleness": 2,
            "save_checkpoints_steps": 50,
            "save_summary_steps": 5,
            "keep_checkpoint_max": 0,
        },
        train={"max_steps": 10**6},
        eval=EVAL,
    )
    lost = 3
    with Launched(job, ranks=RANKS) as run:
        wait_for(lambda: steps_of(run, lost) or run.process.poll() is not None, lambda: str(run))
        (job.folder / f"stuck-{lost}").touch()
        wait_for((job.folder / f"holds-{lost}").exists, lambda: str(run))
        os.kill(pid_of(job, lost), signal.SIGKILL)
        wait_for(lambda: run.status.get("lost_ranks") == [lost] or run.process.poll() is not None, lambda: str(run))
        step = run.status["step"]
        wait_for(lambda: run.status["step"] > step + 20 or run.process.poll() is not None, lambda: str(run))
        run.process.send_signal(signal.SIGUSR1)
        assert run.end() == 3, str(run)
    step = run.status["step"]
    assert f"rank {lost} was killed by SIGKILL" in run.err + run.out, str(run)
    assert "Traceback" not in run.err
    assert (run.status["state"], run.status["lost_ranks"]) == ("stopped", [lost])
    assert newest(job) == step
    assert int(variables(job.job_dir, step)["optimizer/adam.iteration"]) == step
    (record,) = records_of(job.job_dir, "lost_rank")
    assert (record["rank"], record["signal"], record["left"]) == (lost, "SIGKILL", 1)

    (job.folder / f"stuck-{lost}").unlink()
    (job.folder / f"holds-{lost}").unlink()
    last = step + 60
    change(job, train={"max_steps": last}, run={"max_staleness": None, "save_checkpoints_steps": 1})
    for rank in range(RANKS):
        (job.folder / f"pid-{rank}").unlink()
    first, second = (2, 3)
    (job.folder / f"stuck-{first}").touch()
    with Launched(job, ranks=RANKS, name="again") as run:
        wait_for((job.folder / f"holds-{first}").exists, lambda: str(run))
        wait_for(lambda: newest(job) == last - 1 or run.process.poll() is not None, lambda: str(run))
        os.kill(pid_of(job, first), signal.SIGSEGV)  # the other one waits for its ticket
        assert run.end() == 0, str(run)
    assert f"rank {first} was killed by SIGSEGV" in run.err + run.out, str(run)
    assert (run.status["state"], run.status["step"], run.status["lost_ranks"]) == ("succeeded", last, [first])
    assert int(variables(job.job_dir, last)["optimizer/adam.iteration"]) == last
    assert run.status["steps_by_rank"] == {str(first): 0, str(second): 60}


def test_servers_and_the_last_worker_are_not_done_without(make_job: MakeJob) -> None:
    """One start each: a server is killed, both workers one after the other, the chief."""
    job = make_job(
        model=SLOW + TELLS_ITS_PID,
        run={**TWO_SERVERS, "on_lost_worker": "continue", "save_checkpoints_steps": 20, "save_summary_steps": 5},
        train={"max_steps": 10**6},
        eval=EVAL,
    )
    for name, killed in (("server", [1]), ("workers", [2, 3]), ("chief", [0])):
        with Launched(job, ranks=RANKS, name=name) as run:

            def trains(run: Launched = run) -> bool:
                begun = run.status.get("started", 0) > run.started and bool(steps_of(run, 2) and steps_of(run, 3))
                return begun or run.process.poll() is not None

            wait_for(trains, lambda: str(run))
            for rank in killed:
                os.kill(pid := pid_of(job, rank), signal.SIGKILL)
                wait_for(lambda pid=pid: is_gone(pid), "its end")
                if rank != killed[-1]:  # its guard is to know before the next one is killed that others are left
                    wait_for(lambda run=run: "lost_ranks" in run.status or run.process.poll() is not None, "its loss")
            assert run.end() == EXIT_KILLED, str(run)
        assert f"rank {killed[-1]} on {HOST} was killed by SIGKILL" in run.err
        assert (run.status["state"], run.status["error"]["rank"]) == ("failed", killed[-1])


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="takes ten minutes")
@pytest.mark.parametrize("env", [{}, {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_osc": "pt2pt"}], ids=["memory", "TCP"])
def test_whenever_a_worker_dies_all_steps_are_made(
    make_job: MakeJob, env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    chance, tally, steps = random.Random(len(env)), Counter[str](), 200 if env else 400
    for number in range(TRIES):
        job = make_job(
            f"job{number}",
            model=SLOW + TELLS_ITS_PID,
            run={**TWO_SERVERS, "on_lost_worker": "continue", "save_checkpoints_steps": 20, "save_summary_steps": 1},
            train={"max_steps": steps},
            eval=EVAL,
        )
        lost, moment = chance.choice([2, 3]), chance.randrange(1, steps * 6 // 10)  # status.json is a second late
        with Launched(job, ranks=RANKS, **env) as run:
            wait_for(
                lambda run=run, moment=moment: run.status.get("step", 0) >= moment or run.process.poll() is not None,
                lambda run=run: str(run),
            )
            time.sleep(chance.random() / 10)  # anywhere in a step
            with suppress(ProcessLookupError):  # it has left already
                os.kill(pid_of(job, lost), signal.SIGKILL)
            assert run.end() == 0, f"try {number}: {lost} at {moment}\n{run}"
        assert (run.status["state"], run.status["step"]) == ("succeeded", steps), str(run)
        assert int(variables(job.job_dir, steps)["optimizer/adam.iteration"]) == steps
        assert sum(run.status["steps_by_rank"].values()) == steps
        tally["lost in training" if run.status.get("lost_ranks") == [lost] else "lost at its end"] += 1
    assert tally["lost in training"] > TRIES // 2
    with capsys.disabled():
        print(f"\n{dict(tally)}", flush=True)
