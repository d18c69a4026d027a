"""A rank that stops answering, or an input that does: named, and the job ended at stall_timeout_secs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ranks import train
from tests.support import LIMIT_SECS, Job, environment, is_gone, mpirun, run_ranks, wait_for

MakeJob = Callable[..., Job]
PROGRAM = Path(__file__).parent / "programs" / "stall.py"
TIMEOUT = 20
"""Seconds; the first step, in which TensorFlow builds its graph, takes two or three on an idle machine."""
SHORT = 8
"""The same for programs/stall.py, which builds no graph."""

INPUT = """
import os, threading, time
from pathlib import Path
import tensorflow as tf

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
one_at_a_time, calls = threading.Lock(), iter(range(10**6))
here = Path(__file__).parent

def block(x):
    with one_at_a_time:
        if next(calls) >= 40:
            (here / "began").write_text(str(time.time()))
            time.sleep(1000)
    return x

def wait(x):
    with one_at_a_time:
        time.sleep(PAUSE)
    return x

def mapped(x, y):
    if RANK == LAST:
        x = tf.ensure_shape(tf.numpy_function(ACTION, [x], tf.float32, stateful=False), [None, 8])
    return x, y
"""


def stalling_job(make_job: MakeJob, input_source: str | None = None, name: str = "job") -> Job:
    data = {"train": {"map_fn": "input.py:mapped"}} if input_source else {}
    job = make_job(
        name,
        data=data,
        run={"stall_timeout_secs": TIMEOUT, "save_checkpoints_steps": 10**6},
        train={"max_steps": 10**7},
    )
    if input_source:
        (job.folder / "input.py").write_text(input_source)
    return job


@dataclass
class Run:
    """A job under way; its processes by rank."""

    process: subprocess.Popen[str]
    job_dir: Path

    def status(self) -> dict:
        path = self.job_dir / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"step": 0}

    def wait_for_steps(self) -> dict[int, int]:
        """Waits until steps are made; the process ids by rank."""
        wait_for(lambda: self.status()["step"] or self.process.poll() is not None, "a step")
        assert self.process.poll() is None, self.process.communicate()
        return ranks_below(self.process.pid)

    def end(self) -> tuple[str, float]:
        """What it said on stderr, and how long it took to end from now."""
        begin = time.monotonic()
        _, stderr = self.process.communicate(timeout=LIMIT_SECS)
        return stderr, time.monotonic() - begin


def ranks_below(launcher: int) -> dict[int, int]:
    """Process ids of the ranks that a mpirun has started, by rank."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if folder.name.isdigit() and parent == launcher:
                pairs = (folder / "environ").read_bytes().split(b"\0")
                variables = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
                found[int(variables[b"OMPI_COMM_WORLD_RANK"])] = int(folder.name)
    return found


@contextlib.contextmanager
def started(ranks: int, program: list[object], job_dir: Path) -> Iterator[Run]:
    """Leaves no process behind: what is stopped goes on, and everything is killed."""
    command = [*mpirun(ranks), sys.executable, *map(str, program)]
    with subprocess.Popen(
        command, env=environment(), text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield Run(process, job_dir)
        finally:
            for pid in [*ranks_below(process.pid).values(), *([process.pid] if process.poll() is None else [])]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def training(job: Job) -> list[object]:
    return ["-m", "hpc_train", "train", job.file, "--job-dir", job.job_dir]


@pytest.mark.parametrize(("ranks", "stopped"), [(2, 1), (3, 0)])
def test_a_stopped_rank_is_named_and_the_job_ended(make_job: MakeJob, ranks: int, stopped: int) -> None:
    job = stalling_job(make_job)
    with started(ranks, training(job), job.job_dir) as run:
        pids = run.wait_for_steps()
        assert sorted(pids) == list(range(ranks))
        os.kill(pids[stopped], signal.SIGSTOP)
        stopped_at = time.time()
        stderr, took = run.end()
        print(f"ended {took:.1f} s after SIGSTOP, stall_timeout_secs {TIMEOUT}")
        assert run.process.returncode == 6, stderr
        assert took > TIMEOUT - 0.5, stderr
        assert stderr.count("hpc-train: error:") == 1, stderr
        assert f"hpc-train: error: rank {stopped} (host " in stderr
        assert f", pid {pids[stopped]}) stopped answering: no word of it for " in stderr
        assert "training step" in stderr
        assert f"stall_timeout_secs={TIMEOUT}" in stderr
        assert "Traceback" not in stderr, stderr
        wait_for(lambda: all(map(is_gone, pids.values())), "all processes have ended")
    check_status(job, stopped, "stopped answering")
    folder = next((job.job_dir / "logs").glob("stall-*"))
    # On a busy machine a first step can take so long that there is an older file, of a rank that went on.
    told = {path.name for path in folder.iterdir() if path.stat().st_mtime > stopped_at}
    assert {f"rank-{rank}.json" for rank in range(ranks) if rank != stopped} <= told
    assert f"rank-{stopped}.json" not in told


def check_status(job: Job, rank: int, said: str) -> None:
    status = json.loads((job.job_dir / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["error"]["rank"] == rank
    assert said in status["error"]["message"]


def test_a_rank_that_goes_on_in_time_costs_nothing(make_job: MakeJob) -> None:
    """Stopped for more than half of the time, so that the others have reported."""
    job = stalling_job(make_job)
    with started(2, training(job), job.job_dir) as run:
        pids = run.wait_for_steps()
        os.kill(pids[1], signal.SIGSTOP)
        wait_for(lambda: list((job.job_dir / "logs").glob("stall-*/rank-0.json")), "the other reports")
        step = run.status()["step"]
        os.kill(pids[1], signal.SIGCONT)
        goes_on = lambda: run.status()["step"] > step and not list((job.job_dir / "logs").glob("stall-*"))
        wait_for(lambda: goes_on() or run.process.poll() is not None, "it goes on")
        time.sleep(0.6 * TIMEOUT)  # until it would have been ended
        assert run.process.poll() is None, run.process.communicate()
        run.process.send_signal(signal.SIGUSR1)
        run.end()
    assert run.process.returncode == 3


def test_an_input_that_is_stuck_is_named_and_a_slow_one_is_not(make_job: MakeJob) -> None:
    """Stuck are one rank alone, one of two, and one before its first batch; the slow input is read beside them."""
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run_with_slow_input, make_job)
        for ranks in (0, 2):
            run_with_stuck_input(make_job, ranks)
        run_without_first_batch(make_job)
        slow.result()


def run_with_stuck_input(make_job: MakeJob, ranks: int) -> None:
    stuck = max(0, ranks - 1)
    job = stalling_job(make_job, INPUT.replace("ACTION", "block").replace("LAST", str(stuck)), f"stuck-{ranks}")
    done = train(job, ranks, fresh=True)
    took = time.time() - float((job.folder / "began").read_text())
    print(f"ended {took:.1f} s after the input got stuck, stall_timeout_secs {TIMEOUT}")
    assert done.returncode == 6, done.stderr
    assert took > TIMEOUT - 0.5
    assert done.stderr.count("hpc-train: error:") == 1, done.stderr
    assert f"hpc-train: error: rank {stuck} (host " in done.stderr
    assert " s: waiting for input at step " in done.stderr
    assert ("; the other: training step " in done.stderr) == (ranks > 1), done.stderr
    check_status(job, stuck, "waiting for input")
    report = next((job.job_dir / "logs").glob(f"stall-*/rank-{stuck}.json"))
    stacks = json.loads(report.read_text())["stacks"]
    assert any("input.py" in line for lines in stacks.values() for line in lines), "the stack shows where it is stuck"


def run_without_first_batch(make_job: MakeJob) -> None:
    """The others have theirs, and wait for the one that has not."""
    source = INPUT.replace("ACTION", "block").replace("LAST", "1").replace(">= 40", ">= 0")
    job = stalling_job(make_job, source, "no first batch")
    done = train(job, 2, fresh=True)
    assert done.returncode == 6, done.stderr
    assert "hpc-train: error: rank 1 (host " in done.stderr
    assert "waiting for input at step 0; the other: waiting for the others" in done.stderr


def run_with_slow_input(make_job: MakeJob) -> None:
    """Each batch of rank 1 takes 0.6 of the time, so the job takes longer than it is given for one step."""
    source = INPUT.replace("ACTION", "wait").replace("LAST", "1").replace("PAUSE", str(0.6 * TIMEOUT))
    job = stalling_job(make_job, source, "slow")
    job.file.write_text(job.file.read_text().replace("max_steps: 10000000", "max_steps: 4"))
    begin = time.monotonic()
    done = train(job, 2, fresh=True)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin > 2 * TIMEOUT
    assert not list((job.job_dir / "logs").glob("stall-*"))


@pytest.mark.parametrize(("ranks", "who"), [(2, 1), (3, 0)])
def test_a_rank_that_others_wait_for_is_named(tmp_path: Path, ranks: int, who: int) -> None:
    done = run_ranks(ranks, [PROGRAM, tmp_path / "job", SHORT, who, "hang"], tmp_path)
    assert done.returncode == 6, done.stderr
    assert f"rank {who} (host" in done.stderr
    assert "has not moved for" in done.stderr
    assert "export at step 4; the other" in done.stderr
    assert "waiting for the others (training step) at step 5" in done.stderr
    assert json.loads((tmp_path / "job" / "status.json").read_text())["error"]["rank"] == who


def test_a_rank_whose_watchdog_cannot_run_does_not_answer(tmp_path: Path) -> None:
    """Code outside Python that never gives Python's lock back."""
    done = run_ranks(2, [PROGRAM, tmp_path / "job", SHORT, 0, "hold"], tmp_path)
    assert done.returncode == 6, done.stderr
    assert "rank 0 (host" in done.stderr
    assert "stopped answering: no word of it for" in done.stderr


def test_no_watch_where_the_time_is_zero_and_none_left_where_all_is_well(tmp_path: Path) -> None:
    for secs in (0, TIMEOUT):
        done = run_ranks(2, [PROGRAM, tmp_path / "job", secs, 1, "nothing"], tmp_path)
        assert done.returncode == 0, done.stderr
        assert not list((tmp_path / "job" / "logs").iterdir())


def test_ranks_end_by_themselves_where_mpirun_does_not_answer(tmp_path: Path) -> None:
    """MPI_Abort waits for it, and holds Python's lock meanwhile."""
    with started(3, [PROGRAM, tmp_path / "job", SHORT, 2, "stop"], tmp_path / "job") as run:
        wait_for((tmp_path / "job" / "began").exists, "the rank is stopped")
        pids = ranks_below(run.process.pid)
        os.kill(run.process.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: is_gone(pids[0]) and is_gone(pids[1]), "the others end")
        finally:
            os.kill(run.process.pid, signal.SIGCONT)
        run.end()
    wait_for(lambda: all(map(is_gone, pids.values())), "all processes have ended")
