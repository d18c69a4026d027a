"""The job's lock, with real processes; what flock does not do on some file systems is played by a broken flock."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.resilience import job_lock
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.lock_holder import Record, describe, is_earlier_run, judge, my_record, refusal
from tests.support import LIMIT_SECS, environment, wait_for

HOLDER = """
import errno, os, socket, sys, time
from pathlib import Path
from hpc_train.resilience import job_lock
job_lock.HEARTBEAT_SECS = 0.1
if "no flock" in sys.argv:
    def missing(*_): raise OSError(errno.ENOLCK, "No locks available")
    job_lock.fcntl.flock = missing
if "elsewhere" in sys.argv:
    socket.gethostname = lambda: "n2"
job_lock.JobLock(Path(sys.argv[1])).acquire()
if "fork" in sys.argv and os.fork() == 0:
    print("held", flush=True)  # the parent is killed once the child has begun
    time.sleep(3600)
if "fork" not in sys.argv:
    print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(job_dir: Path, *how: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `job_dir` until it is killed; ended at the end with its children."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(job_dir), *how],
        env=environment(**env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(timeout=LIMIT_SECS)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds instead of half a minute; the holder's heart beats ten times in them."""
    monkeypatch.setattr(job_lock, "WATCH_SECS", 2.0)
    monkeypatch.setattr(job_lock, "SETTLE_SECS", 0.3)


def no_flock(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def mine(**changes: object) -> Record:
    return {**my_record({"SLURM_JOB_ID": "45"}), **changes}


def test_the_record_says_who_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "46")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "45")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    with JobLock(tmp_path):
        record = json.loads((tmp_path / "lock.json").read_text())
        assert (tmp_path / "lock.json").stat().st_mode & 0o777 == 0o600
    assert record["pid"] == os.getpid()
    assert record["slurm_job_id"] == "45_2"
    assert abs(record["started"] - time.time()) < LIMIT_SECS
    assert isinstance(record["process_start"], int)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_second_job_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with holder(tmp_path, SLURM_JOB_ID="4711") as first:
        with pytest.raises(UserError) as refused:
            JobLock(tmp_path).acquire()
        assert f"host {os.uname().nodename}, pid {first.pid}, Slurm job 4711" in str(refused.value)
        assert "give this job another --job-dir" in str(refused.value)
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == first.pid, "left as it was"


def test_a_lock_that_was_left_and_released_can_be_taken_again(tmp_path: Path, logged: list[str]) -> None:
    lock = JobLock(tmp_path)
    for _ in range(2):
        lock.acquire()
        with pytest.raises(RuntimeError):
            lock.acquire()
        lock.release()
        lock.release()
    JobLock(tmp_path).acquire()
    assert not logged


def test_the_lock_of_a_dead_job_is_taken_over_at_once_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    with holder(tmp_path, SLURM_JOB_ID="4711") as first:
        kill(first)
        monkeypatch.setattr(job_lock, "WATCH_SECS", 10**6)
        lock = JobLock(tmp_path)
        lock.acquire()
        assert f"pid {first.pid}, Slurm job 4711" in logged[0]
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
        lock.release()
    assert not (tmp_path / "lock.json").exists()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path, logged: list[str]) -> None:
    with holder(tmp_path, "fork") as first:
        kill(first)  # its child lives on
        JobLock(tmp_path).acquire()
        assert f"pid {first.pid}" in logged[0]


@pytest.mark.parametrize("text", ["", "{", '{"host": "n', "[1]"])
def test_a_file_without_a_record_does_not_stop_a_job(tmp_path: Path, soon: None, text: str) -> None:
    (tmp_path / "lock.json").write_text(text)
    with JobLock(tmp_path):
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("flock", ["flock", "no flock"])
def test_a_job_elsewhere_is_watched(
    tmp_path: Path, soon: None, monkeypatch: pytest.MonkeyPatch, flock: str, logged: list[str]
) -> None:
    """Its heart beats; and here flock says that nobody holds the lock, or nothing at all."""
    if flock == "no flock":
        monkeypatch.setattr(job_lock.fcntl, "flock", no_flock)
    with holder(tmp_path, "elsewhere", "no flock") as first:
        with pytest.raises(UserError, match="host n2"):
            JobLock(tmp_path).acquire()
        kill(first)
        before = time.monotonic()
        JobLock(tmp_path).acquire()
        assert time.monotonic() - before > 2
    assert len(logged) == 3 and all("host n2" in line for line in logged) and f"pid {first.pid}" in logged[2]


EARLIER = {"SLURM_JOB_ID": "45", "HPC_TRAIN_RESTARTS": "1"}
KEPT = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def kept(job_dir: Path, **changes: object) -> Iterator[subprocess.Popen[str]]:
    """The lock of a chief on a node that has died, as a file server keeps it: a process that touches nothing."""
    path = job_dir / "lock.json"
    path.write_text(json.dumps({**my_record(EARLIER), "host": "n2", "pid": 1, **changes}))
    with subprocess.Popen(
        [sys.executable, "-c", KEPT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is of the job's run after EARLIER."""
    monkeypatch.setenv("SLURM_JOB_ID", "45")
    monkeypatch.setenv("HPC_TRAIN_RESTARTS", "2")


def test_a_lock_that_a_file_server_keeps_for_a_dead_node_is_waited_for(
    tmp_path: Path, restarted: None, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setattr(job_lock, "WATCH_SECS", 0.5)
    with kept(tmp_path) as lease:

        def end() -> None:
            wait_for(lambda: logged, "the line that it is waited for")
            time.sleep(1)  # so long that it is not watched as well
            lease.kill()

        ends = threading.Thread(target=end, daemon=True)
        ends.start()
        with JobLock(tmp_path):
            assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
        ends.join()
    assert "the job-dir is locked by an earlier run of this job, host n2, pid 1, Slurm job 45; waiting" in logged[0]
    assert [line[:9] for line in logged[1:]] == ["took over"]


def test_a_lock_that_is_never_given_up_is_refused_in_the_end(
    tmp_path: Path, restarted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lock, "LEASE_SECS", 0.5)
    with kept(tmp_path), pytest.raises(UserError, match="another job uses this job-dir"):
        JobLock(tmp_path).acquire()


def test_an_earlier_run_that_lives_is_not_waited_for_long(
    tmp_path: Path, restarted: None, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setattr(job_lock, "LEASE_SECS", 10**6)
    with holder(tmp_path, **EARLIER) as first, pytest.raises(UserError, match=f"pid {first.pid}"):
        JobLock(tmp_path).acquire()
    assert len(logged) == 1


@pytest.mark.parametrize("changes", [{"slurm_job_id": "46"}, {"restarts": 2}, {"restarts": None}])
def test_the_lock_of_another_job_is_not_waited_for(
    tmp_path: Path, restarted: None, logged: list[str], changes: dict[str, object]
) -> None:
    with kept(tmp_path, **changes), pytest.raises(UserError, match="host n2"):
        JobLock(tmp_path).acquire()
    assert not logged


def test_runs_of_one_launch_are_of_one_job() -> None:
    first, second = (my_record({"HPC_TRAIN_SUPERVISOR": "7", "HPC_TRAIN_RESTARTS": count}) for count in "01")
    assert is_earlier_run(first, second) and not is_earlier_run(second, first)
    assert not is_earlier_run(first, {**second, "supervisor": "8"})
    assert not is_earlier_run({**first, "supervisor": None}, {**second, "supervisor": None})


def test_a_requeue_comes_after_all_that_its_script_counted_before() -> None:
    runs = [
        my_record({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": requeues, "HPC_TRAIN_RESTARTS": restarts})
        for requeues, restarts in ("00", "01", "02", "10", "11", "20")
    ]
    for number, run in enumerate(runs):
        assert [is_earlier_run(other, run) for other in runs] == [True] * number + [False] * (len(runs) - number)
    assert not is_earlier_run({**runs[0], "slurm_restarts": None}, runs[1])


def test_of_two_that_take_over_at_once_without_flock_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text(json.dumps(mine(host="n2", pid=1)))
    code = HOLDER.replace(
        "job_lock.JobLock(", "job_lock.WATCH_SECS, job_lock.SETTLE_SECS = 1.0, 10.0\njob_lock.JobLock(", 1
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), "no flock"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        wait_for(lambda: any(process.poll() is not None for process in both), "one is refused")
        (lost,) = [process for process in both if process.poll() is not None]
        (won,) = [process for process in both if process is not lost]
        assert won.stdout is not None and lost.stderr is not None
        assert won.stdout.readline() == "held\n"
        assert f"pid {won.pid}" in lost.stderr.read()
    finally:
        for process in both:
            process.kill()
            process.communicate()


def test_a_lock_that_was_taken_away_is_noticed_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_lock, "HEARTBEAT_SECS", 0.05)
    with JobLock(tmp_path) as lock:
        (tmp_path / "lock.json").write_text(json.dumps(mine(host="n2", pid=1)))
        wait_for(lambda: lock.taken_by is not None, "it is noticed")
        assert lock.taken_by == "host n2, pid 1, Slurm job 45"
    assert (tmp_path / "lock.json").exists(), "the other's"


def test_a_job_dir_that_has_vanished_or_cannot_be_written(tmp_path: Path) -> None:
    with JobLock(tmp_path):
        (tmp_path / "lock.json").unlink()
    with pytest.raises(UserError, match=r"gone/lock\.json: cannot be written: No such file or directory"):
        JobLock(tmp_path / "gone").acquire()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_lock_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(job_lock.os, "pwrite", pwrite)
    with pytest.raises(UserError, match=os.strerror(number)):
        JobLock(tmp_path).acquire()
    assert not list(tmp_path.iterdir())


def test_who_is_taken_for_dead() -> None:
    me = mine()
    assert judge(mine(pid=1), me, flocked=True) == "take", "the kernel let go of it"
    assert judge(mine(pid=1), me, flocked=False) == "watch"
    assert judge(mine(host="n2"), me, flocked=True) == "watch"
    assert judge(mine(host="n2", slurm_restarts=1), me, flocked=True) == "take", "requeued: it cannot run twice"
    assert judge(mine(host="n2", slurm_restarts=1), me, flocked=False) == "take"
    assert judge(mine(host="n2", slurm_job_id="46"), me, flocked=True) == "watch"
    assert judge(mine(host="n2", slurm_job_id=None), mine(slurm_job_id=None), flocked=True) == "watch"


def test_words() -> None:
    record = {"host": "n1", "pid": 123, "slurm_job_id": None, "started": 0}
    assert describe(record) == "host n1, pid 123"
    said = refusal(Path("runs/a"), {**record, "slurm_job_id": "45_2"})
    assert said.startswith("runs/a: another job uses this job-dir since 19")
    assert ": host n1, pid 123, Slurm job 45_2; wait until" in said
    assert "host unknown, pid unknown" in refusal(Path("runs/a"), {})
