"""The status of a job, from what its job-dir and its queue say."""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hpc_train.config.resources import Resources
from hpc_train.jobs.record.status import ENDED, STATES, JobRecord, JobStatus, Phase, QueueState, State, job_status
from hpc_train.jobs.record.submission import Submission
from hpc_train.jobs.tables import description, job_table
from hpc_train.outcome import EXIT_CANCELLED, EXIT_FAILED, EXIT_LOST, EXIT_STOPPED
from hpc_train.telemetry.status import LONGEST_TEXT, sound

NOW = 2e9
JOB_DIR = Path("/runs/tiny_1")
ERROR = {"rank": 1, "message": "ValueError: boom"}


def submission(**changes: Any) -> Submission:
    fields: dict[str, Any] = {
        "token": "t0",
        "name": "tiny_1",
        "kind": "model",
        "backend": "slurm",
        "submitted": NOW - 100,
        "user": "me",
        "host": "login",
        "job_file": "/home/me/job.yaml",
        "entry": "job.yaml",
        "settings": (),
        "resources": Resources(tier="LARGE", nodes=2, ranks_per_node=3).model_dump(mode="json"),
        "code": {},
        "version": "0.1",
        "job_id": "7",
    }
    return Submission(**fields | changes)


def status_of(
    seen: QueueState,
    status: Mapping[str, Any] | None = None,
    cancelled_by: str | None = None,
    of: Submission | None = None,
) -> JobStatus:
    """Of a submitted job whose status.json is its own."""
    record = JobRecord(JOB_DIR, of or submission(), {"job_id": "7", **(status or {})}, cancelled_by)
    return job_status(record, "slurm", seen, NOW)


ended = QueueState("ended")
failed = QueueState("ended", "Slurm: FAILED, exit code 7", exit_code=7)
forgotten = QueueState("forgotten")
again = {"requeues": 1}


@pytest.mark.parametrize(
    ("seen", "status", "cancelled", "state", "reason", "code"),
    [
        # it waits
        (QueueState("waiting", "Resources"), {"state": "queued"}, None, "QUEUED", "Resources", None),
        (QueueState("waiting", "JobHeldUser"), {}, "me", "QUEUED", "JobHeldUser", None),
        (QueueState("waiting", "BeginTime", 1), {"state": "running"}, None, "REQUEUED", "BeginTime", None),
        (QueueState("waiting", "BeginTime"), {"state": "requeued"}, None, "REQUEUED", "BeginTime", None),
        # it runs
        (QueueState("running"), {"state": "queued"}, None, "PREPARING", None, None),
        (QueueState("running"), {}, None, "PREPARING", None, None),
        (QueueState("running"), {"state": "running"}, None, "RUNNING", None, None),
        (QueueState("running"), {"state": "running"}, "me", "RUNNING", None, None),
        (QueueState("running"), {"state": "succeeded"}, None, "RUNNING", "finishing", None),
        (QueueState("running"), {"state": "failed"}, None, "RUNNING", "finishing", None),
        (QueueState("running", None, 1), {"state": "requeued"}, None, "PREPARING", None, None),
        (QueueState("running", None, 1), {"state": "running", **again}, None, "RUNNING", None, None),
        (QueueState("running", None, 1), {"state": "running"}, None, "PREPARING", None, None),
        (QueueState("running", None, 1), {"state": "failed", "requeues": 0}, None, "PREPARING", None, None),
        (QueueState("leaving", "processes of it still run (7)"), {"state": "succeeded"}, None, "RUNNING",
         "finishing: processes of it still run (7)", None),
        (QueueState("running", "Slurm ends it"), {"state": "failed", "exit_code": 1}, None, "RUNNING",
         "finishing: Slurm ends it", None),
        # it has ended
        (ended, {"state": "succeeded"}, None, "SUCCEEDED", None, 0),
        (ended, {"state": "running"}, None, "SUCCEEDED", None, 0),
        (ended, {"state": "succeeded", "exit_code": 0}, "me", "SUCCEEDED", None, 0),
        (failed, {"state": "failed", "exit_code": 7}, None, "FAILED", "Slurm: FAILED, exit code 7", 7),
        (failed, {"state": "running"}, None, "FAILED", "Slurm: FAILED, exit code 7", 7),
        (failed, {"state": "failed", "exit_code": 0}, None, "FAILED", "Slurm: FAILED, exit code 7", 7),
        (QueueState("ended", exit_code=2), {}, None, "FAILED", "it ended with code 2", 2),
        (QueueState("ended", exit_code=137), {}, None, "FAILED", "killed by SIGKILL", 137),
        (QueueState("ended", signal=9), {}, None, "FAILED", "killed by SIGKILL", 137),
        (QueueState("ended", "Slurm: NODE_FAIL"), {"state": "running"}, None, "FAILED", "Slurm: NODE_FAIL",
         EXIT_FAILED),
        (QueueState("ended", "Slurm: TIMEOUT", signal=15), {}, None, "FAILED", "Slurm: TIMEOUT", 143),
        (failed, {"state": "failed"}, "ann", "CANCELLED", "cancelled by ann", EXIT_CANCELLED),
        (failed, {"state": "stopped", "exit_code": 4}, "ann", "CANCELLED", "cancelled by ann", EXIT_CANCELLED),
        (QueueState("ended", "Slurm: CANCELLED", cancelled=True), {}, None, "CANCELLED", "Slurm: CANCELLED",
         EXIT_CANCELLED),
        (QueueState("ended", "Slurm: CANCELLED", cancelled=True), {}, "ann", "CANCELLED", "cancelled by ann",
         EXIT_CANCELLED),
        (failed, {"state": "stopped", "exit_code": 3}, None, "STOPPED", "saved, and left before its end", 3),
        (failed, {"state": "stopped", "exit_code": 8, "error": {"message": "no progress"}}, None, "STOPPED",
         "no progress", 8),
        (failed, {"state": "stopped"}, None, "STOPPED", "saved, and left before its end", 7),
        # its queue knows it no more
        (forgotten, {"state": "succeeded"}, None, "SUCCEEDED", None, 0),
        (forgotten, {"state": "succeeded"}, "me", "SUCCEEDED", None, 0),
        (forgotten, {"state": "failed", "exit_code": 6}, None, "FAILED", None, 6),
        (forgotten, {"state": "failed"}, None, "FAILED", None, EXIT_FAILED),
        (forgotten, {"state": "failed", "exit_code": 6}, "ann", "CANCELLED", "cancelled by ann", EXIT_CANCELLED),
        (forgotten, {"state": "queued"}, "ann", "CANCELLED", "cancelled by ann", EXIT_CANCELLED),
        (forgotten, {"state": "stopped", "exit_code": 4}, None, "STOPPED", "saved, and left before its end", 4),
        (forgotten, {"state": "stopped"}, None, "STOPPED", "saved, and left before its end", EXIT_STOPPED),
        *((forgotten, {"state": said}, None, "LOST", "its queue no longer knows it, and it left no end", EXIT_LOST)
          for said in ("queued", "running", "requeued", None, "nonsense")),
        (QueueState("forgotten", "its process has ended"), {"state": "running"}, None, "LOST", "its process has ended",
         EXIT_LOST),
        # its queue does not answer: what it has said itself
        (QueueState("unasked", note="down"), {"state": "queued"}, None, "QUEUED", None, None),
        (QueueState("unasked"), {"state": "running"}, "me", "RUNNING", None, None),
        (QueueState("unasked"), {"state": "requeued"}, None, "REQUEUED", None, None),
        (QueueState("unasked"), {"state": "succeeded"}, None, "SUCCEEDED", None, 0),
        (QueueState("unasked"), {"state": "failed", "exit_code": 2}, None, "FAILED", None, 2),
        (QueueState("unasked"), {"state": "stopped", "exit_code": 3}, None, "STOPPED", None, 3),
    ],
)  # fmt: skip
def test_states(
    seen: QueueState, status: dict[str, Any], cancelled: str | None, state: State, reason: str | None, code: int | None
) -> None:
    found = status_of(seen, status, cancelled)
    assert (found.state, found.reason, found.exit_code) == (state, reason, code)
    assert found.has_ended == (state in ENDED)
    assert found.note == seen.note


def test_the_table_above_has_all_states() -> None:
    table = next(mark for mark in test_states.pytestmark if mark.name == "parametrize").args[1]
    assert {row[3] for row in table} == set(STATES) - {"UNREADABLE"}
    assert {row[0].phase for row in table} == set(get_args(Phase))


@pytest.mark.parametrize("said", ["running", "succeeded", "failed", "stopped", "requeued"])
def test_the_status_of_an_earlier_submission_is_not_its_own(said: str) -> None:
    """It lies in the job-dir until the job that goes on in it writes its own."""
    old = {"job_id": "6", "state": said, "exit_code": 6, "error": ERROR, "ranks": 99, "started": 1.0, "requeues": 5}
    old |= {"restarts": 4, "secs_left": 9.0, "step": 40, "loss": 0.5}
    expected: list[tuple[QueueState, State, int | None]] = [
        (QueueState("waiting", "Resources"), "QUEUED", None),
        (QueueState("running"), "PREPARING", None),
        (failed, "FAILED", 7),
        (ended, "SUCCEEDED", 0),
        (forgotten, "LOST", EXIT_LOST),
        (QueueState("unasked"), "QUEUED", None),
    ]
    for seen, state, code in expected:
        found = status_of(seen, old)
        assert (found.state, found.exit_code) == (state, code)
        assert (found.ranks, found.requeues, found.restarts, found.started, found.secs_left) == (6, 0, 0, None, None)
        assert (found.step, found.loss) == (40, 0.5), "what it goes on from"
        assert ERROR["message"] not in str(found.error)


@pytest.mark.parametrize("said", ["running", "requeued", "stopped", "failed"])
def test_the_end_of_an_earlier_run_is_not_its_own(said: str) -> None:
    """As where a job that had ended was put back by scontrol requeue, and its node went down."""
    old = {"state": said, "exit_code": 8, "error": ERROR, "requeues": 1}
    found = status_of(QueueState("ended", "Slurm: NODE_FAIL", requeues=2, signal=9), old)
    assert (found.state, found.reason, found.exit_code) == ("FAILED", "Slurm: NODE_FAIL", 137)
    assert found.error == {"rank": None, "message": "Slurm: NODE_FAIL"}
    assert found.requeues == 2


def test_an_end_that_accounting_tells_has_no_count_of_requeues() -> None:
    found = status_of(
        QueueState("ended", "Slurm: FAILED"), {"state": "failed", "exit_code": 6, "error": ERROR, "requeues": 3}
    )
    assert (found.state, found.exit_code, found.error, found.requeues) == ("FAILED", 6, ERROR, 3)


def test_what_a_running_job_says() -> None:
    status = {
        "state": "running",
        "step": 120,
        "max_steps": 2000,
        "examples_per_sec": 4e4,
        "loss": 0.25,
        "evaluation": {"step": 100, "accuracy": 0.9},
        "secs_left": 50.0,
        "ranks": 6,
        "requeues": 1,
        "restarts": 2,
        "host": "n1",
        "started": NOW - 60,
        "updated": NOW - 1,
        "exports": ["export/final"],
        "error": ERROR,
    }
    found = status_of(QueueState("running", None, 1, NOW - 70, NOW + 600, where="n[1-2]"), status)
    for name in ("step", "max_steps", "examples_per_sec", "loss", "evaluation", "secs_left", "ranks", "restarts"):
        assert getattr(found, name) == status[name]
    assert (found.limit_secs_left, found.where, found.started, found.updated) == (600, "n[1-2]", NOW - 60, NOW - 1)
    assert (found.exports, found.error, found.requeues) == (["export/final"], None, 1)
    assert (found.name, found.job_id, found.backend, found.kind) == ("tiny_1", "7", "slurm", "model")
    assert (found.tier, found.submitted, found.job_dir) == ("LARGE", NOW - 100, "/runs/tiny_1")


def test_times_that_are_left_are_of_running_jobs() -> None:
    late = status_of(QueueState("running", limit=NOW - 5), {"state": "running", "secs_left": 3.0})
    assert (late.limit_secs_left, late.secs_left) == (0, 3)
    for seen in (
        QueueState("waiting", limit=NOW + 9),
        QueueState("ended", limit=NOW + 9),
        QueueState("unasked", limit=NOW + 9),
    ):
        found = status_of(seen, {"state": "queued", "secs_left": 3.0})
        assert (found.limit_secs_left, found.secs_left) == (None, None)
    assert status_of(QueueState("running")).limit_secs_left is None


def test_a_job_that_has_not_begun_has_the_ranks_that_were_asked_for() -> None:
    assert status_of(QueueState("waiting")).ranks == 6
    assert status_of(QueueState("waiting"), of=submission(after="3")).started is None
    assert status_of(QueueState("running", started=5.0)).started == 5


def test_the_error_of_what_has_failed() -> None:
    assert status_of(failed, {"state": "failed", "error": ERROR}).error == ERROR
    assert status_of(forgotten, {"state": "running", "error": ERROR}).error == ERROR, "LOST"
    assert status_of(failed, {"state": "stopped", "error": ERROR}).error == ERROR
    assert status_of(failed).error == {"rank": None, "message": "Slurm: FAILED, exit code 7"}
    assert status_of(forgotten, {"state": "failed", "exit_code": 9}).error == {
        "rank": None,
        "message": "it ended with code 9",
    }
    for seen, status in ((ended, {"state": "succeeded"}), (QueueState("waiting"), {}), (QueueState("running"), {})):
        assert status_of(seen, {**status, "error": ERROR}).error is None
    assert status_of(failed, {"error": ERROR}, "ann").error is None, "CANCELLED"


def test_a_job_that_was_started_by_hand() -> None:
    status = {"state": "succeeded", "program": True, "ranks": 2}
    found = job_status(JobRecord(JOB_DIR, None, status), "by hand", forgotten, NOW)
    assert (found.name, found.backend, found.kind, found.state) == ("tiny_1", "by hand", "program", "SUCCEEDED")
    assert (found.job_id, found.tier, found.submitted, found.ranks) == (None, None, None, 2)
    record = JobRecord(JOB_DIR, None, {"state": "running", "job_id": "9"})
    by_sbatch = job_status(record, "slurm", QueueState("running"), NOW)
    assert (by_sbatch.backend, by_sbatch.job_id, by_sbatch.state, by_sbatch.kind) == ("slurm", "9", "RUNNING", "model")


def test_resources_of_another_version_are_not_understood() -> None:
    of = submission(resources={"tier": "HUGE", "of_the_future": 1})
    found = status_of(QueueState("waiting", "Resources"), of=of)
    assert (found.state, found.tier, found.ranks) == ("QUEUED", "HUGE", None)
    assert status_of(QueueState("running"), {"state": "running", "ranks": 4}, of=of).ranks == 4


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([2**62, 10**400, -(10**400), float("nan"), float("inf"), float("-inf"), 1e308, -0.0, 1e-320])
    | st.text(st.characters(exclude_categories=()), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
"""What JSON can hold: numbers of any size and NaN, halves of characters, things within things."""
DEEP: Any = functools.reduce(lambda inner, _: [inner], range(900), [])
"""As deep as Python reads JSON."""

words = st.text(max_size=5)
counts = st.integers(0, 3) | st.just(10**12)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 300)
times = st.floats(0, 1e10)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "state": st.sampled_from(["queued", "running", "requeued", "succeeded", "failed", "cancelled", "stopped", "?"]),
    "job_id": st.sampled_from(["7", "7", "6"]),
    "exit_code": st.sampled_from([0, 3]) | st.integers(0, 255),
    "error": st.fixed_dictionaries(
        {"rank": st.none() | counts, "message": words.filter(bool)},
        optional={"signal": words, "lines": st.lists(words, max_size=2)},
    ),
    **dict.fromkeys(("requeues", "restarts"), st.integers(0, 3)),
    **dict.fromkeys(("ranks", "step", "max_steps", "pid", "process_start"), counts),
    **dict.fromkeys(("examples_per_sec", "loss"), numbers),
    **dict.fromkeys(("secs_left", "started", "updated"), times),
    "evaluation": st.dictionaries(st.text(max_size=3), st.none() | numbers, max_size=2).flatmap(
        lambda metrics: counts.map(lambda step: {"step": step, **metrics})
    ),
    "exports": st.lists(words, max_size=2),
    "program": st.booleans(),
    **dict.fromkeys(("host", "boot_id"), words),
}
"""What this version writes into a status.json, by field."""
good_statuses = st.fixed_dictionaries({}, optional=GOOD)
statuses = good_statuses | st.builds(
    lambda good, bad, deep: {**good, **bad, **dict.fromkeys(deep, DEEP)},
    good_statuses,
    st.dictionaries(st.sampled_from([*GOOD, "evaluations", "of the future"]), JUNK, max_size=4)
    | st.fixed_dictionaries(
        {},
        optional={
            "error": st.dictionaries(st.sampled_from(["rank", "message", "signal", "lines"]), JUNK),
            "evaluation": st.dictionaries(st.sampled_from(["step", "loss", "x"]), JUNK),
        },
    ),
    st.lists(st.sampled_from([*GOOD]), max_size=1),
)


def seen_things(phase: Phase) -> st.SearchStrategy[QueueState]:
    return st.builds(
        QueueState,
        phase=st.just(phase),
        reason=st.none() | words,
        requeues=st.integers(0, 3),
        started=st.none() | times,
        limit=st.none() | times,
        cancelled=st.booleans(),
        exit_code=st.integers(0, 255),
        signal=st.integers(0, 64),
        where=st.none() | words,
        note=st.none() | words,
    )


submissions = st.none() | st.builds(
    submission, backend=st.sampled_from(["slurm", "local"]), job_id=st.sampled_from([None, "7"])
)
STATES_OF: dict[Phase, set[State]] = {
    "waiting": {"QUEUED", "REQUEUED"},
    "running": {"PREPARING", "RUNNING"},
    "leaving": {"RUNNING"},
    "ended": {"SUCCEEDED", "FAILED", "CANCELLED", "STOPPED"},
    "forgotten": {"SUCCEEDED", "FAILED", "CANCELLED", "STOPPED", "LOST"},
    "unasked": {"QUEUED", "RUNNING", "REQUEUED", "SUCCEEDED", "FAILED", "CANCELLED", "STOPPED"},
}


@pytest.mark.parametrize("phase", get_args(Phase))
@given(st.data())
def test_any_job_stands_somehow(phase: Phase, data: st.DataObject) -> None:
    """Whatever is in its status.json: the status is whole, true to itself and to its queue, and can be shown."""
    of, raw = data.draw(submissions), data.draw(statuses)
    cancelled_by, seen = data.draw(st.none() | st.just("ann")), data.draw(seen_things(phase))
    record = JobRecord(JOB_DIR, of, sound(raw), cancelled_by)

    found = job_status(record, "slurm", seen, NOW)

    assert found.state in STATES_OF[phase]
    assert found.has_ended == (found.exit_code is not None) == (found.state in ENDED)
    if found.exit_code is not None:
        assert 0 <= found.exit_code <= 255
        assert (found.exit_code == 0) == (found.state == "SUCCEEDED")
        assert (found.exit_code == EXIT_LOST) or found.state != "LOST"
        assert (found.exit_code == EXIT_CANCELLED) or found.state != "CANCELLED"
    assert (found.error is not None) or found.state != "FAILED"
    assert (found.error is None) or found.state in ("FAILED", "STOPPED", "LOST")
    if found.error is not None:
        assert isinstance(found.error["message"], str)
        assert found.error["rank"] is None or found.error["rank"] >= 0
    assert record.has_reported_end in (True, False)
    assert found.requeues >= seen.requeues
    for count in (found.step, found.max_steps, found.ranks, found.restarts, found.requeues):
        assert count is None or 0 <= count < 2**62
    for number in (found.loss, found.examples_per_sec, found.secs_left, *(found.evaluation or {}).values()):
        assert number is None or math.isfinite(number)
    assert (found.secs_left is None) or found.state == "RUNNING"
    assert json.loads(json.dumps(asdict(found), allow_nan=False)) == asdict(found)

    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8") as screen:
        console = Console(file=screen, width=200)
        console.print(job_table([found], 200))
        console.print(description(found))
        screen.flush()
        shown = screen.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert shown.count(found.state) >= 2, "in the table and in the description"


def test_the_states_above_are_all_that_there_are() -> None:
    assert set().union(*STATES_OF.values()) == set(STATES) - {"UNREADABLE"}


@given(good_statuses, st.sampled_from([*GOOD]), JUNK | st.just(DEEP))
def test_a_status_that_this_version_writes_is_sound_and_junk_spoils_its_own_field_alone(
    status: dict[str, Any], name: str, junk: Any
) -> None:
    assert sound(status) == status
    rest = {other: value for other, value in status.items() if other != name}
    spoilt = sound({**status, name: junk, "of the future": junk})
    assert {other: value for other, value in spoilt.items() if other != name} == rest
    assert sound(spoilt) == spoilt


def test_a_long_error_keeps_what_the_model_has_raised() -> None:
    frames = "".join(f"  File '/a/long/path/of/a/module_{number}.py', line 1, in call\n" for number in range(200))
    error = {"rank": 1, "message": f"UnknownError: Graph execution error:\n{frames}RuntimeError: no such luck"}
    known = sound({"error": error})["error"]["message"]
    assert len(known) == LONGEST_TEXT
    assert known.startswith("UnknownError: Graph execution error:\n  File")
    assert known.endswith("RuntimeError: no such luck")
    assert sound({"error": {"message": known}})["error"]["message"] == known
