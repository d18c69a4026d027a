"""status.json has one writer, which each of those calls that know of a job's state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import hpc_train
from hpc_train.errors import JobEndedError
from hpc_train.resilience.failure import FailureReport
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.status import (
    StatusFile,
    mark_begun,
    mark_ended,
    mark_exit_code,
    mark_failed,
    mark_outcome,
    mark_queued,
    read_status,
    sound,
)


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    """Of a job that runs, or has failed before and was started again."""
    write(tmp_path, state="running", step=7, job_id="5", requeues=1)
    return tmp_path


def write(job_dir: Path, **fields: Any) -> None:
    (job_dir / "status.json").write_text(json.dumps(fields))


def test_a_failure_has_the_last_word_in_the_status(tmp_path: Path) -> None:
    report = FailureReport(tmp_path, "run")
    status = StatusFile(tmp_path, report.path, Lenient(), step=0)
    status.update(state="running", step=1)
    error = ValueError("broken")
    text = report.claim(3, error)
    assert text is not None
    assert text.startswith("rank 3 failed:\n")
    assert report.claim(1, error) is None, "only the first tells"
    found = report.describe(3, error)
    mark_failed(tmp_path, found.error, found.step)
    status.update(state="succeeded", step=2)
    written = json.loads((tmp_path / "status.json").read_text())
    assert (written["state"], written["step"]) == ("failed", 1)
    assert written["error"] == {"rank": 3, "message": "ValueError: broken"}


@pytest.mark.parametrize("text", ["", "[1]", '{"state": "runn', "[" * 100_000, "\xff", None])
def test_a_status_that_cannot_be_read_says_nothing_and_can_be_written(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "status.json").write_text(text, encoding="latin-1")
    assert read_status(tmp_path) == {}
    assert not mark_ended(tmp_path, 1, None, "it has left"), "nothing says that it ran"
    failure = FailureReport(tmp_path, "run").describe(1, JobEndedError("the loss is NaN", 7, rank=3))
    mark_failed(tmp_path, failure.error, failure.step)
    found = read_status(tmp_path)
    assert (found["state"], found["error"]) == ("failed", {"rank": 3, "message": "the loss is NaN"})


def test_a_failure_says_where_it_was_without_the_secrets_of_the_job(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that was being made, whatever was last reported; the user's own message; the user's own line."""
    monkeypatch.setenv("HPC_TRAIN_MASKED", "TOKEN LEVEL")
    monkeypatch.setenv("TOKEN", "hunter2hunter2")
    monkeypatch.setenv("LEVEL", "3")
    report = FailureReport(job_dir, "run")
    report.at = lambda: ("training step 43", 42)
    try:
        raise ValueError("no 3 for hunter2hunter2")
    except ValueError as error:
        found, text = report.describe(1, error), report.claim(1, error)
    mark_failed(job_dir, found.error, found.step)

    status = sound(read_status(job_dir))
    assert (status["state"], status["step"]) == ("failed", 42)
    where = status["error"]["where"]
    assert re.fullmatch(rf"{re.escape(__file__)}, line \d+, in test_a_failure_says_\w+", where)
    assert status["error"] == {
        "rank": 1, "message": "ValueError: no 3 for ***", "doing": "training step 43", "where": where
    }  # fmt: skip
    assert text is not None
    assert text.endswith(f"\nrank 1 failed (training step 43): ValueError: no 3 for *** ({where})\n")
    assert "hunter2" not in text


def test_a_submission_keeps_how_far_the_job_was_and_not_how_it_ended(job_dir: Path) -> None:
    write(job_dir, state="failed", step=7, job_id="5", error={"message": "x"}, exit_code=1, secs_left=9.0, updated=1)
    mark_queued(job_dir)
    found = read_status(job_dir)
    assert found.pop("updated") > 1
    assert found == {"state": "queued", "step": 7}


def test_a_submission_that_cannot_be_noted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mark_queued(tmp_path / "absent")


def test_the_run_of_a_program_begins_a_new_status(job_dir: Path) -> None:
    mark_begun(job_dir, 4, 99, {"SLURM_JOB_ID": "6", "SLURM_RESTART_COUNT": "2"})
    found = read_status(job_dir)
    assert "step" not in found
    assert (found["state"], found["program"], found["ranks"], found["pid"]) == ("running", True, 4, 99)
    assert (found["job_id"], found["requeues"], found["restarts"]) == ("6", 2, 2)


def test_a_launcher_does_not_contradict_the_job(job_dir: Path) -> None:
    assert mark_ended(job_dir, None, "SIGKILL", "rank 1 was killed")
    found = read_status(job_dir)
    assert (found["state"], found["step"]) == ("failed", 7)
    assert found["error"] == {"signal": "SIGKILL", "message": "rank 1 was killed"}
    assert not mark_ended(job_dir, 2, None, "later")
    assert read_status(job_dir) == found


def test_what_started_the_ranks_has_the_last_word(job_dir: Path) -> None:
    mark_outcome(job_dir, "failed", 137, {"rank": None, "message": "killed"}, {"job_id": "6"})
    found = read_status(job_dir)
    assert (found["state"], found["exit_code"], found["job_id"], found["step"]) == ("failed", 137, "6", 7)
    assert found["error"] == {"rank": None, "message": "killed"}
    mark_exit_code(job_dir, 9)
    assert read_status(job_dir) | {"updated": 0} == found | {"exit_code": 9, "updated": 0}
    mark_outcome(job_dir, "requeued", None, None, {})
    assert not {"error", "exit_code"} & read_status(job_dir).keys(), "it has not ended"


def test_where_nothing_can_be_written_only_a_submission_fails(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    mark_begun(absent, 1, 1, {})
    mark_failed(absent, {"rank": 0, "message": "x"}, 3)
    mark_outcome(absent, "failed", 1, None, {})
    mark_exit_code(absent, 1)
    assert not absent.exists()


def test_nothing_else_writes_it() -> None:
    """Submitting puts back, after an error, what was there before."""
    package = Path(hpc_train.__file__).parent
    writes = re.compile(r"(write_json|replace_text|write_text|open)\([^\n]*(STATUS_FILE|status\.json)")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if writes.search(path.read_text())}
    assert found == {"telemetry/status.py"}
