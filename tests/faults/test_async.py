"""Parameter servers and workers that die, hang, are stopped, or meet bad numbers."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import h5py
import numpy as np
import yaml

from tests.faults.launched import MPIRUN, STUCK, Launched, faulty, processes
from tests.ranks import train
from tests.support import Job, is_gone, merge, records_of, variables, wait_for

MakeJob = Callable[..., Job]
HOST = os.uname().nodename
STALL_SECS = 12
RANKS = 3
"""Two servers, the chief among them, and a worker; where it matters one server and two workers."""
TWO_SERVERS = {"strategy": "async", "parameter_servers": 2}
EVAL = {"throttle_secs": 10**6, "start_delay_secs": 10**6}


def change(job: Job, **changes: object) -> None:
    """Changes the job file in one go: a restart may be about to read it."""
    temporary = job.file.with_suffix(".new")
    temporary.write_text(yaml.safe_dump(merge(yaml.safe_load(job.file.read_text()), changes)))
    temporary.replace(job.file)


def saved_steps(job: Job) -> list[int]:
    return sorted(int(path.name[5:]) for path in (job.job_dir / "checkpoints").glob("step-*"))


def newest(job: Job) -> int:
    return max(saved_steps(job), default=0)


def test_whoever_is_killed_is_named_and_the_job_goes_on(make_job: MakeJob) -> None:
    """A worker, a server and the chief, one after the other, each once a checkpoint has been made."""
    job = make_job(
        model=faulty("pass", pause=0.02, first=2),
        run={**TWO_SERVERS, "save_checkpoints_steps": 20, "keep_checkpoint_max": 0},
        train={"max_steps": 10**6},
        eval=EVAL,
    )
    killed = [2, 1, 0]
    with Launched(job, "--max-restarts", str(len(killed)), ranks=RANKS, HPC_TRAIN_RESTARTS="0") as run:
        resumed_from = []
        for number, rank in enumerate(killed):
            run.wait_for(f"began-{number}")
            before = newest(job)
            wait_for(lambda before=before: newest(job) > before, lambda: str(run))
            if number == len(killed) - 1:
                last = newest(job) + 200
                change(job, train={"max_steps": last})
            pids = {of: pid for pid, of in processes(job.folder).items() if of >= 0}
            assert sorted(pids) == list(range(RANKS))
            os.kill(pids[rank], signal.SIGKILL)
            said = f"hpc-train: rank {rank} on {HOST} was killed by SIGKILL; restart {number + 1} of {len(killed)}"
            wait_for(lambda said=said: said in run.err, lambda: str(run))
            resumed_from.append(int(re.findall(r"from step (\d+)\n", run.err)[-1]))
        assert run.end() == 0, str(run)
    assert run.err.count("was killed by SIGKILL") == len(killed), run.err
    assert "Traceback" not in run.err
    assert [int(step) for step in re.findall(r"going on from step (\d+) ", run.out)] == resumed_from
    assert set(resumed_from) <= set(saved_steps(job))
    assert (run.status["state"], run.status["step"]) == ("succeeded", last)
    assert "error" not in run.status
    found = variables(job.job_dir, last)
    assert int(found["optimizer/adam.iteration"]) == last
    assert all(np.isfinite(array).all() for array in found.values())


def test_a_signal_saves_and_an_exception_of_a_worker_is_told_once(make_job: MakeJob) -> None:
    """Two starts of one job: the first is stopped, the second goes on and meets the exception."""
    cursed = faulty('raise ValueError("the batch is cursed")', rank=2, call=40, runs="[7]", first=1)
    job = make_job(
        model=cursed, run={"strategy": "async", "save_checkpoints_steps": 10**6}, train={"max_steps": 10**6}, eval=EVAL
    )
    with Launched(job, "--max-restarts", "9", ranks=RANKS, HPC_TRAIN_RESTARTS="0") as run:
        run.wait_for("began-0")
        wait_for(lambda: run.status.get("step", 0) > 0, lambda: str(run))
        run.process.send_signal(signal.SIGUSR1)
        assert run.end() == 3, str(run)
    step = run.status["step"]
    assert run.status["state"] == "stopped"
    assert saved_steps(job) == [step]
    assert f"stopped after step {step}, which is saved" in run.out
    assert "hpc-train: error" not in run.err
    assert "Traceback" not in run.err
    assert int(variables(job.job_dir, step)["optimizer/adam.iteration"]) == step

    change(job, run={"save_checkpoints_steps": 10})
    with Launched(job, ranks=RANKS, name="again", HPC_TRAIN_RESTARTS="7") as run:
        run.wait_for("struck-7")
        assert run.end() == 1
    assert f"going on from step {step} " in run.out
    assert len(re.findall(r"rank \d failed:", run.err)) == 1, run.err
    assert "rank 2 failed:" in run.err
    assert run.err.count("Traceback (most recent call last):\n  File") == 1, run.err
    assert "the batch is cursed" in run.err
    assert run.status["state"] == "failed"
    assert run.status["error"]["rank"] == 2
    assert newest(job) > step


def test_a_worker_that_hangs_is_named(make_job: MakeJob) -> None:
    """Also where the other waits for it, as max_staleness has it."""
    job = make_job(
        model=faulty(STUCK, rank=2, call=25, first=1),
        run={
            "strategy": "async",
            "max_staleness": 3,
            "save_checkpoints_steps": 10,
            "stall_timeout_secs": STALL_SECS,
        },
        train={"max_steps": 10**6},
        eval=EVAL,
    )
    with Launched(job, ranks=RANKS) as run:
        struck = run.wait_for("struck-0")
        assert run.end() == 6, str(run)
        assert time.time() - struck > STALL_SECS - 1
    assert run.err.count("hpc-train: error:") == 1, run.err
    assert f"hpc-train: error: rank 2 (host {HOST}, pid " in run.err
    assert "training step" in run.err
    assert f"stall_timeout_secs={STALL_SECS}" in run.err
    assert run.status["state"] == "failed"
    assert run.status["error"]["rank"] == 2
    assert newest(job) >= 40, "24 gradients of the worker that hangs, and at least as many of the other but three"


TELLS_ITS_PID = """
Path(f"pid-{rank}.tmp").write_text(str(os.getpid()))
Path(f"pid-{rank}.tmp").rename(f"pid-{rank}")
"""


def pids_of(job: Job, ranks: int) -> list[int]:
    """The ranks' own processes, as they have told them."""
    return [int((job.folder / f"pid-{rank}").read_text()) for rank in range(ranks)]


def test_a_stopped_server_is_named_and_no_process_stays(make_job: MakeJob) -> None:
    """The second of two servers: the worker waits for it, and the chief for gradients."""
    job = make_job(
        model=faulty("pass", pause=0.02, first=2) + TELLS_ITS_PID,
        run={**TWO_SERVERS, "save_checkpoints_steps": 10, "stall_timeout_secs": STALL_SECS},
        train={"max_steps": 10**6},
        eval=EVAL,
    )
    with Launched(job, ranks=RANKS, anew=True) as run:
        wait_for(lambda: newest(job) or run.process.poll() is not None, lambda: str(run))
        pids = pids_of(job, RANKS)
        assert {pid: rank for pid, rank in processes(job.folder).items() if rank != MPIRUN} == {
            pid: rank for rank, pid in enumerate(pids)
        }
        os.kill(pids[1], signal.SIGSTOP)
        stopped = time.time()
        assert run.end() == 6, str(run)
        assert time.time() - stopped > STALL_SECS - 1
        wait_for(lambda: all(map(is_gone, pids)), "all ranks have ended, the stopped one too")
    assert run.err.count("hpc-train: error:") == 1, run.err
    assert f"hpc-train: error: rank 1 (host {HOST}, pid {pids[1]}) stopped answering: no word of it for " in run.err
    assert "waiting for" in run.err.partition("no word of it")[2], "what the others do"
    assert f"stall_timeout_secs={STALL_SECS}" in run.err
    assert "Traceback" not in run.err
    assert (run.status["state"], run.status["error"]["rank"]) == ("failed", 1)
    assert saved_steps(job), "those that were saved stay"


def test_a_stopped_worker_holds_nobody_up_and_is_named_in_the_end(make_job: MakeJob) -> None:
    """Without max_staleness: the other does all steps but the one, at most, whose ticket the stopped one has."""
    last, every = 400, 57  # seven times 57 steps are all but the last
    job = make_job(
        model=faulty("pass", pause=0.01, first=2) + TELLS_ITS_PID,
        run={"strategy": "async", "save_checkpoints_steps": every, "stall_timeout_secs": STALL_SECS},
        train={"max_steps": last},
        eval=EVAL,
    )
    with Launched(job, ranks=RANKS) as run:
        done = lambda: run.status.get("steps_by_rank", {}).get("2", 0)
        wait_for(lambda: done() or run.process.poll() is not None, lambda: str(run))
        pids = pids_of(job, RANKS)
        os.kill(pids[2], signal.SIGSTOP)
        before = run.status["step"]
        assert before < last, "else it proves nothing"
        assert run.end() == 6, str(run)
    assert run.err.count("hpc-train: error:") == 1, run.err
    assert f"hpc-train: error: rank 2 (host {HOST}, pid {pids[2]}) stopped answering: no word of it for " in run.err
    assert f"stall_timeout_secs={STALL_SECS}" in run.err
    assert (run.status["state"], run.status["error"]["rank"]) == ("failed", 2)
    assert newest(job) == last - 1, str(run)
    assert int(variables(job.job_dir, last - 1)["optimizer/adam.iteration"]) == last - 1


WAITS_IN_EVALUATION = """
import os, time
from pathlib import Path
import keras, tensorflow as tf

class Waits(keras.layers.Layer):
    def call(self, x, training=False):
        if not training:
            tf.py_function(self.wait, [], [])
        return x

    def wait(self):
        if list(Path("run/checkpoints").glob("step-*")):  # else the model is being built
            Path("evaluating").touch()
            while not Path("go").exists():
                time.sleep(0.05)

class Slow(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            tf.py_function(lambda: time.sleep(0.02), [], [])
        return x

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), Slow(), Waits(), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


def test_a_signal_during_an_evaluation_that_hangs_saves_and_leaves(make_job: MakeJob) -> None:
    """The evaluation is dropped, although its batch never ends; the job goes on exactly where it was stopped."""
    job = make_job(
        model=WAITS_IN_EVALUATION,
        run={"strategy": "async", "save_checkpoints_steps": 10, "keep_checkpoint_max": 0},
        train={"max_steps": 10**6},
    )
    threads = {"TF_NUM_INTEROP_THREADS": "4"}  # one of which the evaluation keeps
    with Launched(job, **threads) as run:
        wait_for(lambda: (job.folder / "evaluating").exists() or run.process.poll() is not None, lambda: str(run))
        run.process.send_signal(signal.SIGUSR1)
        assert run.end() == 3, str(run)
    step = run.status["step"]
    assert run.status["state"] == "stopped"
    assert max(saved_steps(job)) == step
    assert int(variables(job.job_dir, step)["optimizer/adam.iteration"]) == step
    assert run.out.count(f"stopped after step {step}, which is saved") == 1, str(run)
    assert "hpc-train: error" not in run.err
    assert "Traceback" not in run.err
    assert not records_of(job.job_dir, "eval"), "it was dropped"

    (job.folder / "go").touch()
    change(job, train={"max_steps": step + 15})
    with Launched(job, name="again") as run:
        assert run.end() == 0, str(run)
    assert f"going on from step {step} " in run.out
    assert (run.status["state"], run.status["step"]) == ("succeeded", step + 15)
    assert int(variables(job.job_dir, step + 15)["optimizer/adam.iteration"]) == step + 15
    assert records_of(job.job_dir, "eval")[-1]["step"] == step + 15


BATCH_NORM = """
import keras
from keras import layers

def build_model(params):
    model = keras.Sequential([
        keras.Input((8,)), layers.Dense(16, activation="tanh"), layers.BatchNormalization(), layers.Dropout(0.2),
        layers.Dense(4),
    ])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


def test_a_batch_that_is_not_finite(make_job: MakeJob) -> None:
    """Halt ends before the parameters are touched; skip leaves batches out, and what layers made of them."""
    job = make_job(
        model=BATCH_NORM,
        train_rows=[320],
        data={"train": {"shuffle": "none"}},  # worker 1, which is rank 2, reads row 245 at its eighth step
        run={"strategy": "async", "max_staleness": 1, "save_checkpoints_steps": 4, "keep_checkpoint_max": 0},
        train={"max_steps": 60},
        eval=EVAL,
    )
    with h5py.File(job.folder / "data/train-0.h5", "r+") as file:
        file["x"][245] = np.nan
    done = train(job, RANKS)
    assert done.returncode == 7, done.stdout + done.stderr
    found = re.search(r"step (\d+): loss or gradients of rank 2 are not finite", done.stderr)
    assert found, done.stderr
    assert done.stderr.count("not finite") == 1, done.stderr
    assert "Traceback" not in done.stderr
    step = int(found[1])
    assert 11 <= step <= 20
    assert saved_steps(job) == [n for n in range(4, 60, 4) if n < step]
    for saved in saved_steps(job):
        assert all(np.isfinite(array).all() for array in variables(job.job_dir, saved).values())

    change(job, run={"on_nan": "skip"})
    done = train(job, RANKS)
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = len(re.findall(r"gradients of rank [12] are not finite .*; the step is left out", done.stdout))
    assert skipped >= 1, done.stdout
    found = variables(job.job_dir, 60)
    assert int(found["optimizer/adam.iteration"]) == 60 - skipped
    assert any("moving_mean" in name for name in found)
    for name, array in found.items():
        assert np.isfinite(array).all(), name
