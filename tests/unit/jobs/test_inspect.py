"""What is made of job-dirs: of other versions, of submissions cut short, of jobs that nobody looks after any more."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hpc_train.config.secrets import masked_words
from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobdir.folder_identity import FolderIdentity
from hpc_train.jobs import inspect, prepare
from hpc_train.jobs.cancel import cancel
from hpc_train.jobs.inspect import inspect_job, inspect_jobs
from hpc_train.jobs.job import Job
from hpc_train.jobs.prepare import Placement, PreparedJob, prepare_again
from hpc_train.jobs.record.status import SETTLED_SECS, JobRecord, JobStatus, QueueState, job_status
from hpc_train.jobs.record.submission import note_cancelled, read_submission
from hpc_train.jobs.schedulers.local.runner import TOKEN_VARIABLE
from hpc_train.jobs.schedulers.slurm import queue as slurm_queue
from hpc_train.jobs.schedulers.starter import starter_of
from hpc_train.jobs.submit import submit
from hpc_train.processes import identity
from hpc_train.resilience.job_lock import JobLock
from tests.support import wait_for
from tests.unit.jobs.submissions import a_submission


@pytest.fixture(autouse=True)
def own_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    return tmp_path / "a"


def test_a_job_dir_of_another_version_does_not_hide_the_others(tmp_path: Path) -> None:
    statuses = {
        "good": {"state": "succeeded", "job_id": "7", "exit_code": 0},
        "odd": {"state": 3, "error": "text", "requeues": "q", "exports": 5},
        "of_another_queue": {"state": "running", "job_id": "7"},
    }
    for name, status in statuses.items():
        (tmp_path / name).mkdir()
        a_submission(name=name, backend="pbs" if name == "of_another_queue" else "local").save(tmp_path / name)
        (tmp_path / name / "status.json").write_text(json.dumps(status))

    found = inspect_jobs([tmp_path / name for name in statuses])

    assert [job.state for job in found] == ["SUCCEEDED", "LOST", "RUNNING"]
    assert found[2].note == "this version of hpc_train knows no scheduler 'pbs'"
    with pytest.raises(SchedulerError, match="of_another_queue: not cancelled: this version"):
        cancel(tmp_path / "of_another_queue", save=False)


def test_a_submission_that_was_cut_off_takes_the_number_of_its_ranks(job_dir: Path) -> None:
    a_submission(job_id=None, backend="slurm").save(job_dir)
    (job_dir / "status.json").write_text(json.dumps({"state": "succeeded", "job_id": "12"}))

    job = inspect_job(job_dir)

    assert (job.state, job.job_id) == ("SUCCEEDED", "12")


def test_a_job_whose_runner_was_killed_tells_of_what_is_left(job_dir: Path) -> None:
    token = f"{os.getpid():016x}"
    a_submission(token=token).save(job_dir)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, TOKEN_VARIABLE: token}) as left:
        try:
            job = inspect_job(job_dir)
        finally:
            left.kill()
    assert job.state == "LOST"
    assert "1 of its processes still run: hpc-train cancel a" in (job.reason or "")
    assert "processes" not in (inspect_job(job_dir).reason or "")


def test_what_is_left_of_a_job_can_be_cancelled(job_dir: Path) -> None:
    token = f"{os.getpid():015x}c"
    a_submission(token=token, folder=FolderIdentity.of(job_dir)).save(job_dir)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, TOKEN_VARIABLE: token}) as left:
        done = cancel(job_dir, save=True)
        assert left.wait() < 0
    assert (done.before.state, done.ended, done.saves) == ("LOST", None, False)
    assert inspect_job(job_dir).state == "CANCELLED"
    assert cancel(job_dir, save=False).ended == "CANCELLED"


ENDS: tuple[dict[str, Any], ...] = ({"state": "succeeded"}, {"state": "failed", "exit_code": 1})


@contextmanager
def finished_but_for_a_process(job_dir: Path, end: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A job whose ranks have reported `end`, and of which a process still runs."""
    token = f"{os.getpid():015x}{ENDS.index(end):x}"
    a_submission(token=token, folder=FolderIdentity.of(job_dir)).save(job_dir)
    (job_dir / "status.json").write_text(json.dumps({**end, "job_id": "7", "updated": time.time()}))
    with subprocess.Popen(["sleep", "600"], env={**os.environ, TOKEN_VARIABLE: token}) as left:
        try:
            yield left
        finally:
            left.kill()


@pytest.mark.parametrize("end", ENDS)
def test_a_job_has_ended_once_nothing_of_it_runs(job_dir: Path, end: dict[str, Any]) -> None:
    """Its chief reports the end before mpirun and the runner leave: whoever waits for it may resume it then."""
    with finished_but_for_a_process(job_dir, end) as left:
        found: list[JobStatus] = []

        def seen(status: JobStatus) -> None:
            found.append(status)
            left.kill()

        last = Job(job_dir).wait(watch=seen)

    assert (found[0].state, found[0].exit_code, found[0].has_ended, found[0].finishing) == (
        "RUNNING",
        None,
        False,
        True,
    )
    assert found[0].reason == f"finishing: processes of it still run ({left.pid})"
    assert (last.state, last.note) == (end["state"].upper(), None)
    with pytest.raises(UserError) as refused:  # which looks further: there is no job file
        prepare_again(job_dir, (), Placement(job_dir.parent), lambda _: None)
    assert "still" not in str(refused.value)


def test_what_never_leaves_is_not_waited_for_for_ever(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "FINISH_SECS", 0.0)
    monkeypatch.setattr(prepare, "FINISH_SECS", 0.0)
    with finished_but_for_a_process(job_dir, ENDS[1]) as left:
        status = Job(job_dir).wait()
        assert list(Job(job_dir).logs(follow=True)) == []
        named = f"finishing: processes of it still run ({left.pid})"
        assert (status.state, status.exit_code) == ("FAILED", 1)
        assert status.note == f"a has reported its end, but is still {named}"
        with pytest.raises(UserError, match=rf"is still {re.escape(named)}: end that first, with hpc-train cancel \S+"):
            prepare_again(job_dir, (), Placement(job_dir.parent), lambda _: None)
        done = cancel(job_dir, save=False)
        assert (done.left_over, left.wait()) == (True, -9)
    assert inspect_job(job_dir).state == "FAILED", "what was left of it is ended; how it ended stays"


def test_patience_begins_anew_with_each_end() -> None:
    now = 0.0
    finishing = job_status(JobRecord(Path("/a"), None, {}), "local", QueueState("leaving", "x"), 0.0)
    patience = inspect.Patience(lambda: now)
    assert patience.with_(finishing) is finishing
    now = inspect.FINISH_SECS - 1
    assert patience.with_(finishing) is finishing
    patience.with_(replace(finishing, finishing=False))
    now += 2
    assert patience.with_(finishing) is finishing, "it was put back into the queue meanwhile"
    now += inspect.FINISH_SECS
    assert patience.with_(finishing) is not finishing


def test_an_end_of_long_ago_is_believed(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_submission(backend="slurm").save(job_dir)
    (job_dir / "status.json").write_text(
        json.dumps({"state": "succeeded", "job_id": "7", "updated": time.time() - SETTLED_SECS - 1})
    )
    monkeypatch.setattr(slurm_queue, "seen", lambda *_: pytest.fail("asked"))
    assert inspect_job(job_dir).state == "SUCCEEDED"


def test_a_job_by_hand_has_ended_once_its_job_dir_is_free(job_dir: Path) -> None:
    (job_dir / "status.json").write_text(json.dumps({"state": "succeeded", **identity(), "updated": time.time()}))
    with JobLock(job_dir):
        held = inspect_job(job_dir)
    assert (held.state, held.finishing) == ("RUNNING", True)
    assert held.reason == f"finishing: its job-dir is still in use (host {socket.gethostname()}, pid {os.getpid()})"
    assert inspect_job(job_dir).state == "SUCCEEDED"


def test_a_job_by_hand_that_may_be_another_one_is_not_cancelled(job_dir: Path) -> None:
    status = {"state": "running", "host": socket.gethostname(), "pid": os.getpid(), "started": time.time()}
    (job_dir / "status.json").write_text(json.dumps(status))

    assert (inspect_job(job_dir).state, inspect_job(job_dir).backend) == ("RUNNING", "by hand")
    with pytest.raises(UserError, match=r"does not record that it is the job-dir of its job.* type: kill -\w+ \d+"):
        cancel(job_dir, save=False)
    (job_dir / "status.json").write_text(json.dumps({**status, "host": "elsewhere"}))
    with pytest.raises(SchedulerError, match="to cancel it, type on elsewhere: hpc-train cancel /"):
        cancel(job_dir, save=False)
    assert not (job_dir / "cancelled.json").exists()


STARTER = """
import signal, subprocess, sys, time
from pathlib import Path
def note(number, _):
    Path("got-" + signal.Signals(number).name).touch()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, note)
with subprocess.Popen(["sleep", "600"]) as rank:
    print(rank.pid, flush=True)
    while rank.poll() is None and not Path("got-" + sys.argv[-1]).exists():
        time.sleep(0.05)
    rank.kill()
"""
"""Starts a rank, notes the signals that it gets, and ends the rank at the one that its last argument names."""


@pytest.mark.parametrize(
    ("words", "saves", "ends"),
    [
        (["mpirun", "starter.py"], "SIGUSR1", "SIGTERM"),
        (["python", "hpc-train", "launch"], "SIGTERM", "SIGINT"),
    ],
)
def test_a_job_by_hand_is_cancelled_by_what_has_started_it(
    job_dir: Path, tmp_path: Path, words: list[str], saves: str, ends: str
) -> None:
    (tmp_path / words[1]).write_text(STARTER)
    how: Any = {"executable": sys.executable, "cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, ends], **how) as starter:
        try:
            chief = int(starter.stdout.readline())
            status = {"state": "running", **identity(chief), "started": time.time(), "updated": time.time()}
            (job_dir / "status.json").write_text(json.dumps({**status, "folder": asdict(FolderIdentity.of(job_dir))}))
            found = starter_of(status)
            assert found is not None
            assert found.process.pid == starter.pid
            assert cancel(job_dir, save=True).saves
            wait_for(lambda: (tmp_path / f"got-{saves}").exists(), "it is asked to save")
            assert inspect_job(job_dir).state == "RUNNING"
            done = cancel(job_dir, save=False)
            assert (done.ended, done.saves) == (None, False)
            assert (tmp_path / f"got-{ends}").exists()
        finally:
            starter.kill()
    assert inspect_job(job_dir).state == "CANCELLED"
    (job_dir / "status.json").write_text(json.dumps({**status, "state": "failed", "started": time.time() + 9}))
    assert inspect_job(job_dir).state == "FAILED", "the next run was not cancelled"


def test_the_output_of_a_job_by_hand_and_how_it_goes_on(job_dir: Path, tmp_path: Path) -> None:
    output, other = tmp_path / "train log", tmp_path / "theirs"
    output.write_text("step 1\n")
    other.symlink_to(output)
    fields = {"state": "succeeded", "command": "hpc-train launch -n 2 job.yaml", "cwd": "/my jobs"}

    def lines(of: Path | None) -> list[str]:
        (job_dir / "status.json").write_text(json.dumps({**fields, "output": None if of is None else str(of)}))
        return list(Job(job_dir).logs())

    assert lines(output) == ["step 1"]
    assert lines(other) == [], "it may lead to anybody's file"
    assert inspect.output_elsewhere(job_dir) == f"it prints into {other}"
    assert lines(None) == []
    assert "train.log" in (inspect.output_elsewhere(job_dir) or "")
    with pytest.raises(UserError, match=r"started as before: cd '/my jobs' && hpc-train launch -n 2 job\.yaml$"):
        prepare_again(job_dir, (), Placement(job_dir.parent), lambda _: None)


def test_the_words_of_a_command_are_kept_without_secrets() -> None:
    words = ["launch", "--set", "resources.environment.KEY=hunter2", "--set=resources.environment.B=2", "--set", "a=b"]
    assert masked_words(words) == [
        "launch", "--set", 'resources.environment.KEY="***"', '--set=resources.environment.B="***"', "--set", "a=b"
    ]  # fmt: skip


def test_a_job_started_by_hand_runs_as_long_as_its_own_process(job_dir: Path) -> None:
    """Not as long as any process that has its pid by now."""

    def state(**fields: Any) -> tuple[str, str | None]:
        status = {"state": "running", **identity(), "started": time.time(), **fields}
        (job_dir / "status.json").write_text(json.dumps({k: v for k, v in status.items() if v is not None}))
        found = inspect_job(job_dir)
        return found.state, found.reason

    lost = ("LOST", "its process has ended, and left no end")
    assert state() == ("RUNNING", None)
    assert state(process_start=identity()["process_start"] - 1) == lost
    assert state(boot_id="that of the day before") == lost
    assert state(pid=2**22 + 1) == lost
    bare = {"process_start": None, "boot_id": None}  # as older versions wrote it
    assert state(**bare) == ("RUNNING", None)
    assert state(**bare, started=time.time() - 1e6) == lost, "this process is younger than the record"


def test_a_job_that_was_cancelled_long_ago_is_not_asked_for(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_submission(backend="slurm").save(job_dir)
    note_cancelled(job_dir, a_submission().token, "me")
    os.utime(job_dir / "cancelled.json", (0, time.time() - 7200))
    monkeypatch.setattr(slurm_queue, "seen", lambda *_: pytest.fail("asked"))

    assert inspect_job(job_dir).state == "CANCELLED"


def test_of_two_who_resume_a_job_one_does(job_dir: Path) -> None:
    """Both have looked at it before; the other one was faster."""
    a_submission(token="beefbeefbeefbeef").save(job_dir)
    mine = PreparedJob(a_submission(token="mine"), job_dir, None, "", before="the one both have seen")

    with pytest.raises(UserError, match="somebody else has just resumed it"):
        submit(mine, print)

    found = read_submission(job_dir)
    assert found is not None
    assert found.token == "beefbeefbeefbeef"
