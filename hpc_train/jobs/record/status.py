"""The status of a job: what its job-dir records and its queue reports, and both merged. Pure but for read_record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from hpc_train.jobdir.folder_identity import FolderIdentity, identity_in
from hpc_train.jobdir.paths import SUBMISSION_FILE, export_path
from hpc_train.jobs.record.job_dirs import is_copy
from hpc_train.jobs.record.submission import Submission, cancellation, load_submission
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_CANCELLED, EXIT_FAILED, EXIT_LOST, EXIT_STOPPED, signal_name
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.json_files import UnreadableError
from hpc_train.telemetry.status import load_status, sound

Living = Literal["QUEUED", "PREPARING", "RUNNING", "REQUEUED"]
Ended = Literal["SUCCEEDED", "FAILED", "CANCELLED", "STOPPED", "LOST", "UNREADABLE"]
State = Living | Ended
STATES: tuple[State, ...] = (*get_args(Living), *get_args(Ended))
WAITING: tuple[State, ...] = ("QUEUED", "REQUEUED")
ENDED: tuple[State, ...] = get_args(Ended)
"""States that last. STOPPED: it saved and left before its end. LOST: its queue has forgotten it, and it left no end.
UNREADABLE: its job-dir holds what is no record of a job."""

Phase = Literal["waiting", "running", "leaving", "ended", "forgotten", "unasked"]

SETTLED_SECS = 600.0
"""A job whose job-dir has had its end for so long is over: nobody need be asked about it."""


@dataclass(frozen=True)
class JobRecord:
    """What the job-dir of one job records.

    Attributes:
        submission: None where the job was started without `hpc-train submit`.
        status: The content of status.json; it may be of an earlier submission or run.
        cancelled_by: Who has cancelled this submission.
        folder: Which folder the job has; None where that was not recorded.
        copied: The job-dir is another one: a copy, which is not the job.
        unreadable: What of the records cannot be read, and why, each "FILE is …"; nothing is known of the job then.
        noted: When something was last noted of it in its job-dir, its cancelling included, seconds since 1970.
    """

    job_dir: Path
    submission: Submission | None
    status: Mapping[str, Any]
    cancelled_by: str | None = None
    folder: FolderIdentity | None = None
    copied: bool = False
    unreadable: tuple[str, ...] = ()
    noted: float = 0.0

    @property
    def number(self) -> str | None:
        """The job's in its queue, where it is known."""
        return self.submission.job_id if self.submission is not None else self.status.get("job_id")

    @property
    def has_reported_end(self) -> bool:
        """Whether the job-dir alone records how a submitted job ended; its ranks may not have left yet."""
        if self.copied or self.unreadable:
            return True
        if self.submission is None or self.number is None or self.status.get("job_id") != self.number:
            return False
        reported = self.status.get("state")
        return reported in ("succeeded", "cancelled") or (
            reported in ("failed", "stopped") and isinstance(self.status.get("exit_code"), int)
        )

    def is_fresh(self, now: float) -> bool:
        """Whether what ran it may still be there after its end; `now`: seconds since 1970."""
        return not (self.copied or self.unreadable) and now - self.noted < SETTLED_SECS


def read_record(job_dir: Path) -> JobRecord:
    """Reads it; what is missing is left out, and where something cannot be read, nothing counts.

    A submission that was cut off before it had noted its number takes that of its ranks.
    """
    submission, why = _loaded(load_submission, job_dir, SUBMISSION_FILE)
    found, why_not = _loaded(load_status, job_dir, STATUS_FILE)
    if unreadable := tuple(text for text in (why, why_not) if text is not None):
        return JobRecord(job_dir, None, {}, unreadable=unreadable)
    status, (by, when) = sound(found or {}), cancellation(job_dir, submission)
    if submission is None and when < status.get("started", 0.0):
        by = None  # a run before this one
    folder = submission.folder if submission is not None else identity_in(status)
    if submission is not None and submission.job_id is None and status.get("job_id"):
        submission = replace(submission, job_id=status["job_id"])
    if exports := status.get("exports"):
        status = {**status, "exports": [export_path(job_dir, path) for path in exports]}
    noted = max(status.get("updated", 0.0), when)
    return JobRecord(job_dir, submission, status, by, folder, is_copy(job_dir, folder), noted=noted)


T = TypeVar("T")


def _loaded(load: Callable[[Path], T], job_dir: Path, name: str) -> tuple[T | None, str | None]:
    """What `load` gives of a job-dir, None where it is not there; and why it cannot be read."""
    try:
        return load(job_dir), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{name}: {error.strerror}"
    except UnreadableError as error:
        return None, f"{name}: {error}"


@dataclass(frozen=True)
class QueueState:
    """What a job's queue knows of it.

    Attributes:
        phase: "leaving": it is no longer in the queue, but processes of it still run, which `reason` names;
            "forgotten": the queue does not know it (any more); "unasked": the queue does not answer.
        reason: Why it waits, or why it has ended.
        requeues: How often it went back into the queue.
        started: When this run was started, seconds since 1970.
        limit: When its time limit ends it.
        cancelled: Whether the queue has ended it because it was asked to.
        exit_code, signal: How it ended; 0 where unknown.
        where: The nodes it runs on, or has run on.
        note: What the user should know of the asking itself.
    """

    phase: Phase
    reason: str | None = None
    requeues: int = 0
    started: float | None = None
    limit: float | None = None
    cancelled: bool = False
    exit_code: int = 0
    signal: int = 0
    where: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class JobStatus:
    """All that is known of a job, for people and programs.

    Attributes:
        reason: Why it waits, or how it ended, in words.
        secs_left, limit_secs_left: Until its end, and until its time limit; None where unknown.
        slow_ranks: As StatusFile describes them.
        energy: As EnergyAccount.field describes it; see inspect.with_queue_energy, too.
        staged: As StagedData.field describes it.
        error: {rank, message} of what ended it, with `signal` and its last `lines` where they are known.
        exit_code: What `hpc-train wait` exits with; None until it has ended.
        restart_reason: Why its batch script has started the ranks again, and where.
        finishing: It has reported its end, but its queue or processes of it still have to leave; `reason` names them.
    """

    name: str
    job_dir: str
    job_id: str | None
    backend: str
    kind: str
    state: State
    reason: str | None
    step: int | None
    max_steps: int | None
    examples_per_sec: float | None
    loss: float | None
    evaluation: dict[str, Any] | None
    secs_left: float | None
    limit_secs_left: float | None
    ranks: int | None
    where: str | None
    tier: str | None
    requeues: int
    restarts: int
    submitted: float | None
    started: float | None
    updated: float | None
    error: dict[str, Any] | None
    exports: list[str]
    exit_code: int | None
    note: str | None
    finishing: bool = False
    energy: dict[str, Any] | None = None
    staged: dict[str, Any] | None = None
    restart_reason: str | None = None
    slow_ranks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Whether it is over: this is its last state, unless somebody resumes it, and nothing of it runs any more."""
        return self.state in ENDED


def job_status(record: JobRecord, backend: str, seen: QueueState, now: float) -> JobStatus:
    """What is known of a job.

    Args:
        backend: The name of who runs it.
        seen: What its queue reports.
        now: Seconds since 1970.
    """
    submission, status, job_id = record.submission, record.status, record.number
    own = status if submission is None or status.get("job_id") == job_id else {}
    reported = own if int(own.get("requeues") or 0) >= seen.requeues else {}  # of this run, not of one before
    state, reason = _state(reported, record.cancelled_by, seen)
    if record.unreadable:
        state, reason = "UNREADABLE", "; ".join(record.unreadable)
    elif record.copied and state == "LOST":
        reason = f"a copy of the job-dir of {f'job {job_id}' if job_id else 'a job'}, not the job itself"
    ended = state in ENDED
    code = _exit_code(state, reported, seen) if ended else None
    error = reported.get("error") if state in ("FAILED", "STOPPED", "LOST") else None
    if state == "FAILED" and not error:
        error = {"rank": None, "message": reason or f"it ended with code {code}"}
    running = state == "RUNNING"
    resources = submission.resources if submission is not None else {}
    asked = None
    with suppress(ValueError):  # of another version of this package
        asked = submission.wants.ranks if submission is not None else None
    return JobStatus(
        name=record.job_dir.name,
        job_dir=str(record.job_dir),
        job_id=job_id,
        backend=backend,
        kind=submission.kind if submission is not None else ("program" if status.get("program") else "model"),
        state=state,
        reason=reason,
        step=status.get("step"),
        max_steps=status.get("max_steps"),
        examples_per_sec=status.get("examples_per_sec"),
        loss=status.get("loss"),
        evaluation=status.get("evaluation"),
        secs_left=own.get("secs_left") if running else None,
        limit_secs_left=max(0.0, seen.limit - now) if seen.phase == "running" and seen.limit is not None else None,
        ranks=own.get("ranks", asked),
        where=seen.where or own.get("host"),
        tier=resources.get("tier"),
        requeues=max(seen.requeues, int(own.get("requeues") or 0)),
        restarts=int(own.get("restarts") or 0),
        restart_reason=own.get("restart_reason"),
        submitted=submission.submitted if submission is not None else None,
        started=own.get("started") or seen.started,
        updated=status.get("updated"),
        error=error,
        exports=list(status.get("exports") or []),
        exit_code=code,
        note=seen.note,
        energy=status.get("energy"),
        staged=own.get("staged"),
        slow_ranks=list(own.get("slow_ranks") or []),
        finishing=running and (seen.phase == "leaving" or (reported is own and record.has_reported_end)),
    )


def _state(own: Mapping[str, Any], cancelled_by: str | None, seen: QueueState) -> tuple[State, str | None]:
    reported = own.get("state")
    cancelled = f"cancelled by {cancelled_by}" if cancelled_by is not None else None
    if seen.phase == "waiting":
        return ("REQUEUED" if seen.requeues or reported == "requeued" else "QUEUED"), seen.reason
    if seen.phase == "running":
        if reported in (None, "queued", "requeued"):
            return "PREPARING", seen.reason
        return "RUNNING", (seen.reason if reported == "running" else _finishing(seen))
    if seen.phase == "leaving":
        return "RUNNING", _finishing(seen)
    if seen.phase == "ended":
        if seen.cancelled or reported == "cancelled" or (cancelled is not None and reported != "succeeded"):
            return "CANCELLED", cancelled or seen.reason or "cancelled"
        if reported == "stopped":
            return "STOPPED", _message(own) or "saved, and left before its end"
        if seen.exit_code == 0 and seen.signal == 0 and seen.reason is None:
            return "SUCCEEDED", None
        return "FAILED", seen.reason or _code_in_words(seen.exit_code, seen.signal)
    if reported == "succeeded":
        return "SUCCEEDED", None
    if seen.phase == "forgotten":
        if cancelled is not None or reported == "cancelled":
            return "CANCELLED", cancelled or "cancelled"
        if reported == "failed":
            return "FAILED", seen.reason
        if reported == "stopped":
            return "STOPPED", _message(own) or "saved, and left before its end"
        return "LOST", seen.reason or "its queue no longer knows it, and it left no end"
    known: dict[Any, State] = {
        "running": "RUNNING",
        "requeued": "REQUEUED",
        "failed": "FAILED",
        "stopped": "STOPPED",
        "cancelled": "CANCELLED",
    }
    return known.get(reported, "QUEUED"), seen.reason


def _finishing(seen: QueueState) -> str:
    return f"finishing: {seen.reason}" if seen.reason else "finishing"


def _message(own: Mapping[str, Any]) -> str | None:
    error = own.get("error")
    return str(error["message"]) if isinstance(error, dict) and error.get("message") else None


def _code_in_words(code: int, signal: int) -> str:
    name = signal_name(128 + signal) if signal else signal_name(code)
    return f"killed by {name}" if name else f"it ended with code {code}"


def _exit_code(state: State, own: Mapping[str, Any], seen: QueueState) -> int:
    if state == "SUCCEEDED":
        return 0
    if state == "CANCELLED":
        return EXIT_CANCELLED
    if state == "LOST":
        return EXIT_LOST
    if state == "UNREADABLE":
        return EXIT_BAD_INPUT
    code = own.get("exit_code")
    if isinstance(code, int) and code:
        return code
    unknown = EXIT_STOPPED if state == "STOPPED" else EXIT_FAILED
    return seen.exit_code or (128 + seen.signal if seen.signal else unknown)
