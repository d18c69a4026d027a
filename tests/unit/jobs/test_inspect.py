"""What is made of job-dirs: of other versions, of submissions cut short, of jobs that nobody looks after any more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.resources import Resources
from hpc_train.errors import UserError
from hpc_train.jobs import inspect as module
from hpc_train.jobs.inspect import look, look_at_all
from hpc_train.jobs.prepare import Prepared
from hpc_train.jobs.record.status import Seen
from hpc_train.jobs.record.submission import Submission, note_cancelled, read_submission
from hpc_train.jobs.schedulers.local.queue import LocalQueue
from hpc_train.jobs.schedulers.local.runner import TOKEN_VARIABLE
from hpc_train.jobs.submit import submit
from hpc_train.jobs.tables import description, job_table
from hpc_train.processes import identity
from hpc_train.telemetry.status import sound

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.just({})
)
NAMES = [
    *("state", "step", "max_steps", "loss", "examples_per_sec", "secs_left", "evaluation", "exports", "error", "ranks"),
    *("requeues", "restarts", "started", "updated", "host", "pid", "job_id", "exit_code", "program"),
    *("process_start", "boot_id"),
]


def a_submission(**changes: Any) -> Submission:
    return replace(
        Submission(
            token="0123456789abcdef",
            name="a",
            kind="program",
            backend="local",
            submitted=time.time(),
            user="me",
            host=socket.gethostname(),
            job_file="/x/job.yaml",
            entry="job.yaml",
            settings=(),
            resources=Resources(tier="BASIC").model_dump(mode="json"),
            code={},
            version="1",
            job_id="7",
        ),
        **changes,
    )


@pytest.fixture
def queue(tmp_path: Path) -> LocalQueue:
    return LocalQueue(tmp_path / "queue", 2)


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    return tmp_path / "a"


@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_any_status_is_made_one_that_can_be_shown(status: dict[str, Any]) -> None:
    fields = sound(status)
    stands = module.standing(Path("/runs/a"), None, fields, None, Seen("running", requeues=0), 0.0)
    job_table([stands], 80)
    description(stands)


def test_a_job_dir_of_another_version_does_not_hide_the_others(queue: LocalQueue, tmp_path: Path) -> None:
    for name, status in (("odd", {"state": 3, "error": "text", "requeues": "q", "exports": 5}), ("good", {})):
        (tmp_path / name).mkdir()
        a_submission(name=name).save(tmp_path / name)
        good = {"state": "succeeded", "job_id": "7", "exit_code": 0}
        (tmp_path / name / "status.json").write_text(json.dumps(status or good))

    found = look_at_all([tmp_path / "good", tmp_path / "odd"], queue)

    assert [stands.state for stands in found] == ["SUCCEEDED", "LOST"]


def test_a_submission_that_was_cut_off_takes_the_number_of_its_ranks(queue: LocalQueue, job_dir: Path) -> None:
    a_submission(job_id=None, backend="slurm").save(job_dir)
    (job_dir / "status.json").write_text(json.dumps({"state": "succeeded", "job_id": "12"}))

    stands = look(job_dir, queue)

    assert (stands.state, stands.job_id) == ("SUCCEEDED", "12")


def test_a_job_whose_runner_was_killed_tells_of_what_is_left(queue: LocalQueue, job_dir: Path) -> None:
    token = f"test-{os.getpid()}"
    a_submission(token=token).save(job_dir)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, TOKEN_VARIABLE: token}) as left:
        try:
            stands = look(job_dir, queue)
        finally:
            left.kill()
    assert stands.state == "LOST"
    assert "1 of its processes still run: hpc-train cancel a" in (stands.reason or "")
    assert "processes" not in (look(job_dir, queue).reason or "")


def test_a_job_started_by_hand_runs_as_long_as_its_own_process(queue: LocalQueue, job_dir: Path) -> None:
    """Not as long as any process that has its pid by now."""

    def state(**fields: Any) -> tuple[str, str | None]:
        status = {"state": "running", **identity(), "started": time.time(), **fields}
        (job_dir / "status.json").write_text(json.dumps({k: v for k, v in status.items() if v is not None}))
        stands = look(job_dir, queue)
        return stands.state, stands.reason

    lost = ("LOST", "its process has ended, and left no end")
    assert state() == ("RUNNING", None)
    assert state(process_start=identity()["process_start"] - 1) == lost
    assert state(boot_id="that of the day before") == lost
    assert state(pid=2**22 + 1) == lost
    bare = {"process_start": None, "boot_id": None}  # as older versions wrote it
    assert state(**bare) == ("RUNNING", None)
    assert state(**bare, started=time.time() - 1e6) == lost, "this process is younger than the record"


def test_a_job_that_was_cancelled_long_ago_is_not_asked_for(
    queue: LocalQueue, job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_submission(backend="slurm").save(job_dir)
    note_cancelled(job_dir, a_submission().token, "me")
    os.utime(job_dir / "cancelled.json", (0, time.time() - 7200))
    monkeypatch.setattr(module.slurm_queue, "seen", lambda *_: pytest.fail("asked"))

    assert look(job_dir, queue).state == "CANCELLED"


def test_of_two_who_resume_a_job_one_does(job_dir: Path) -> None:
    """Both have looked at it before; the other one was faster."""
    a_submission(token="that of the other").save(job_dir)
    mine = Prepared(a_submission(token="mine"), job_dir, None, "", before="the one both have seen")

    with pytest.raises(UserError, match="somebody else has just resumed it"):
        submit(mine, print)

    found = read_submission(job_dir)
    assert found is not None
    assert found.token == "that of the other"
