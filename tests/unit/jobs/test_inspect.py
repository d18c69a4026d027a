"""What is made of job-dirs: of other versions, of submissions cut short, of jobs that nobody looks after any more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobdir.folder_identity import FolderIdentity
from hpc_train.jobs.cancel import cancel
from hpc_train.jobs.inspect import inspect_job, inspect_jobs
from hpc_train.jobs.prepare import PreparedJob
from hpc_train.jobs.record.submission import note_cancelled, read_submission
from hpc_train.jobs.schedulers.local.runner import TOKEN_VARIABLE
from hpc_train.jobs.schedulers.slurm import queue as slurm_queue
from hpc_train.jobs.submit import submit
from hpc_train.processes import identity
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


def test_a_job_that_was_started_by_hand_is_not_cancelled(job_dir: Path) -> None:
    status = {"state": "running", "host": socket.gethostname(), "pid": os.getpid(), "started": time.time()}
    (job_dir / "status.json").write_text(json.dumps(status))

    assert (inspect_job(job_dir).state, inspect_job(job_dir).backend) == ("RUNNING", "by hand")
    with pytest.raises(UserError, match=f"was started by hand, .* stop the process .* on {socket.gethostname()}"):
        cancel(job_dir, save=False)
    assert not (job_dir / "cancelled.json").exists()


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
