"""Two jobs do not share a job-dir, and a dead job does not keep it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from tests.faults.launched import KILL, STUCK, Launched, faulty, processes
from tests.faults.support import Injector, namespace
from tests.ranks import train
from tests.support import Job, is_gone, records_of, wait_for

MakeJob = Callable[..., Job]
HOST = os.uname().nodename
LONG = {"train": {"max_steps": 10**6}, "run": {"save_checkpoints_steps": 10**6}}


def test_a_second_job_on_one_job_dir_is_refused_and_told_of_the_first(make_job: MakeJob) -> None:
    job = make_job(model=faulty("pass", pause=0.01), **LONG)
    with Launched(job, anew=True, SLURM_JOB_ID="4711") as first:
        first.wait_for("began-0")
        (chief,) = [pid for pid, rank in processes(job.folder).items() if rank == 0]
        assert json.loads((job.job_dir / "lock.json").read_text())["pid"] == chief
        before = first.status
        second = train(job, 0)
        assert second.returncode == 2, second.stderr
        with Launched(job, "--max-restarts", "9", name="second") as second_launch:
            assert second_launch.end() == 2
        assert "restart" not in second_launch.err
        for said in (second.stderr, second_launch.err):
            assert said.count("another job uses this job-dir since") == 1, said
            assert f"host {HOST}, pid {chief}, Slurm job 4711; wait until it has ended" in said
        status = first.status
        assert status["state"] == "running", "the second has left it alone"
        assert (status["pid"], status["started"]) == (before["pid"], before["started"])
        first.process.send_signal(signal.SIGTERM)
        assert first.end() == 4, first.err
    assert not (job.job_dir / "lock.json").exists()
    assert (first.status["state"], first.status["step"] > before["step"]) == ("stopped", True)


def test_the_lock_of_a_killed_job_is_taken_over_with_a_line(make_job: MakeJob) -> None:
    job = make_job(model=faulty(KILL, rank=0, call=2))
    done = train(job, 0)
    assert done.returncode == -signal.SIGKILL, done.stderr
    dead = json.loads((job.job_dir / "lock.json").read_text())["pid"]
    (job.folder / "model.py").write_text(faulty("pass"))
    done = train(job, 0)
    assert done.returncode == 0, done.stderr
    line = f"took over the lock of a job that ended without leaving it: host {HOST}, pid {dead}"
    assert (done.stdout + done.stderr).count(line) == 1, done.stdout + done.stderr
    assert not (job.job_dir / "lock.json").exists()


def test_a_stopped_job_keeps_its_job_dir_and_a_killed_one_does_not(make_job: MakeJob) -> None:
    """All processes of the first are stopped: they are alive, however long they say nothing."""
    job = make_job(model=faulty(STUCK, rank=0, call=2), **LONG)
    with Launched(job, ranks=1, anew=True) as first:
        first.wait_for("struck-0")
        pids = processes(job.folder)
        (chief,) = [pid for pid, rank in pids.items() if rank == 0]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        second = train(job, 0)
        assert second.returncode == 2, second.stderr
        assert f"pid {chief}" in second.stderr
        first.process.kill()
        first.process.wait()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: all(map(is_gone, pids)), "the end of all ranks, and so of their locks")
    (job.folder / "model.py").write_text(faulty("pass"))
    job.file.write_text(job.file.read_text().replace("max_steps: 1000000", "max_steps: 4"))
    third = train(job, 0)
    assert third.returncode == 0, third.stderr
    assert "took over the lock" in third.stdout + third.stderr


def test_a_job_of_another_node_whose_flock_does_not_reach_this_one(make_job: MakeJob, injector: Injector) -> None:
    """It is refused while the first one's heart beats, takes over once it does not, and is then left alone.

    As on Lustre with localflock: each node locks for itself, so the second one's flock succeeds.
    """
    job = make_job(
        model=faulty("pass", pause=0.02),
        train={"max_steps": 10**6},
        run={"save_checkpoints_steps": 20},
        eval={"start_delay_secs": 10**6},
    )
    elsewhere = namespace("--uts", "hostname elsewhere")
    own_flock = injector.env("flock:/lock.json:1:*:zero")
    lock = lambda: json.loads((job.job_dir / "lock.json").read_text())
    with Launched(job, ranks=1, anew=True) as first:
        first.wait_for("began-0")
        (chief,) = [pid for pid, rank in processes(job.folder).items() if rank == 0]
        assert (lock()["host"], lock()["pid"]) == (HOST, chief)
        with Launched(job, ranks=1, name="refused", below=elsewhere, **own_flock) as refused:
            assert refused.end() == 2, str(refused)
        said = f"the job-dir is locked by host {HOST}, pid {chief}; looking for 25 s whether that job lives"
        assert (refused.out + refused.err).count(said) == 1, str(refused)
        assert refused.err.count("another job uses this job-dir since") == 1, str(refused)
        assert f"host {HOST}, pid {chief}; wait until it has ended" in refused.err
        assert (lock()["host"], first.status["host"]) == (HOST, HOST), "the first goes on"
        assert injector.struck()[0][0] == "flock"

        os.kill(chief, signal.SIGSTOP)  # as a node that stands still
        with Launched(job, ranks=1, name="second", below=elsewhere, **own_flock) as second:
            runs = lambda: second.status.get("host") == "elsewhere" and second.status["step"] > 0
            wait_for(lambda: runs() or second.process.poll() is not None, lambda: str(second))
            took_over = f"took over the lock of a job that ended without leaving it: host {HOST}, pid {chief}"
            assert (second.out + second.err).count(took_over) == 1, str(second)
            assert lock()["host"] == "elsewhere"

            os.kill(chief, signal.SIGCONT)
            assert first.end() == 1, str(first)
            assert first.err.count("another job has taken over this job-dir while this process stood still: ") == 1
            assert f": host elsewhere, pid {lock()['pid']}; this one writes no more" in first.err, first.err
            step = second.status["step"]
            wait_for(lambda: second.status["step"] > step or second.process.poll() is not None, lambda: str(second))
            assert lock()["host"] == "elsewhere", "it is not the first one's to remove"
            second.process.send_signal(signal.SIGTERM)
            assert second.end() == 4, str(second)
    assert (second.status["state"], second.status["host"]) == ("stopped", "elsewhere")
    assert "error" not in second.status
    assert [record["state"] for record in records_of(job.job_dir, "end")] == ["stopped"], "the first ends unseen"
    assert not (job.job_dir / "lock.json").exists()
