"""The end of a queue's job, as who started its ranks sees it: noted in the job-dir, where killed ranks could not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from hpc_train.config.yaml_loader import read_yaml
from hpc_train.errors import UserError
from hpc_train.jobdir.folder_identity import FolderIdentity
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import SUBMISSION_FILE
from hpc_train.jobs.launch.error_excerpt import RunOutput, last_words
from hpc_train.jobs.launch.progress_check import why_not_again
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_NOT_REQUEUED, describe_end, signal_name
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.json_files import read_json
from hpc_train.telemetry.status import job_fields, mark_begun, mark_exit_code, mark_outcome, read_status, sound
from hpc_train.text import visible

Requeue = Literal["warning", "preemption", "lost-node"]
"""Why a job is to be started again."""


def find_job_dir(job_file: Path | None, job_dir: Path | None, settings: Sequence[str] = ()) -> Path | None:
    """The folder that `hpc-train train JOB.yaml --job-dir D --set SETTING` uses; None where that does not follow."""
    if job_dir is not None or job_file is None:
        return job_dir
    names = [value for key, _, value in (setting.partition("=") for setting in settings) if key == "name"]
    try:
        value = {"name": names[-1]} if names else read_yaml(job_file).value
    except UserError:
        return None
    name = value.get("name") if isinstance(value, dict) else None
    return Path("runs") / name if isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name) else None


def is_own(job_dir: Path, submission: str) -> bool:
    """Whether `job_dir` was made by the submission with this token, as its SUBMISSION_FILE records."""
    return bool(read_json(job_dir / SUBMISSION_FILE).get("token") == submission)


def record_begin(job_dir: Path | None, submission: str | None, ranks: int, pid: int) -> None:
    """Notes in `job_dir` that a program of the user's own is about to run on `ranks` ranks.

    Args:
        submission: The token that `job_dir` has to be of; otherwise it is left alone.
        pid: Of the process that starts them.

    Replaces status.json; nothing where there is no job-dir, and no error for what cannot be written.
    """
    if job_dir is not None and job_dir.is_dir() and (submission is None or is_own(job_dir, submission)):
        mark_begun(job_dir, ranks, pid, os.environ, folder=asdict(FolderIdentity.of(job_dir)))


def record_end(
    job_dir: Path | None,
    code: int,
    requeue: Requeue | None,
    submission: str | None = None,
    program: bool = False,
    printed: RunOutput | None = None,
    cancelled: bool = False,
) -> int:
    """Notes in `job_dir` that the ranks have ended with `code` (EXIT_NOT_REQUEUED: stopped, and not requeued either).

    Args:
        requeue: Why the job is about to go back into the queue, or None if it is not.
        submission: The token that `job_dir` has to be of; otherwise it is left alone. All ends of a submission are
            noted; EXIT_BAD_INPUT means of others that the job-dir may be another job's.
        program: The ranks ran a program of the user's own, which writes no status.json.
        printed: Where to look for the error, if the ranks did not report it.
        cancelled: The queue has ended the job since somebody asked for that; what the ranks reported of it is no error.

    Returns:
        0; or EXIT_NOT_REQUEUED where it must not, since it makes no progress. That is printed, with what to do.

    Writes status.json and REQUEUES_FILE; nothing where there is no job-dir, and no error for what cannot be written.
    """
    own = job_dir is not None and submission is not None and is_own(job_dir, submission)
    if submission is not None and not own:
        job_dir = None
    if code == EXIT_BAD_INPUT and not own:
        return 0
    run = {**job_fields(os.environ), **({"program": True} if program else {})} if own else {}
    if requeue not in (None, "preemption"):
        step = newest_step(job_dir) if job_dir is not None else None
        if (problem := why_not_again(job_dir, step, program, os.environ)) is not None:
            print(f"hpc-train: {visible(problem)}", flush=True)
            if job_dir is not None:
                mark_outcome(job_dir, "stopped", EXIT_NOT_REQUEUED, _error(problem), run)
            return EXIT_NOT_REQUEUED
    if job_dir is None:
        return 0
    status = sound(read_status(job_dir))
    if own and (
        status.get("state") == "queued" or any(status.get(name) != run[name] for name in ("job_id", "requeues"))
    ):
        status = {}  # this run has reported nothing
    reported = status.get("state")
    if requeue is not None:
        mark_outcome(job_dir, "requeued", None, None, run)
    elif cancelled:
        if reported != "succeeded" and (own or reported in ("running", "requeued")):
            mark_outcome(job_dir, "cancelled", code, None, run)
    elif code == EXIT_NOT_REQUEUED:
        message = "the job was stopped, and could not be put back into the queue"
        mark_outcome(job_dir, "stopped", code, _error(message), run)
    elif code == 0:
        if program:
            mark_outcome(job_dir, "succeeded", 0, None, run)
    elif reported in ("running", "requeued") or (own and (reported is None or (program and printed is not None))):
        ended, error = _describe(code, status, printed)
        mark_outcome(job_dir, ended, code, error, run)
    elif own:
        mark_exit_code(job_dir, code)
    return 0


def record_next_run(job_dir: Path | None, submission: str | None, program: bool) -> str | None:
    """Notes in `job_dir` that the ranks are about to be started again by who started them.

    Args:
        submission, program: As in record_end.

    Returns:
        None; or why they must not, since the job makes no progress: that is noted as its end.

    Writes status.json and REQUEUES_FILE; nothing where there is no job-dir, and no error for what cannot be written.
    """
    if job_dir is not None and submission is not None and not is_own(job_dir, submission):
        job_dir = None
    run = job_fields(os.environ) | ({"program": True} if program else {}) if submission is not None else {}
    step = newest_step(job_dir) if job_dir is not None else None
    problem = why_not_again(job_dir, step, program, os.environ)
    if job_dir is not None and (job_dir / STATUS_FILE).is_file():
        if problem is None:
            mark_outcome(job_dir, "requeued", None, None, run)
        else:
            mark_outcome(job_dir, "stopped", EXIT_NOT_REQUEUED, _error(problem), run)
    return problem


def newest_step(job_dir: Path) -> int | None:
    """The step of the newest checkpoint, or None. None is read or verified."""
    return max(JobDir(job_dir).checkpoints(), default=None)


def _describe(code: int, status: Mapping[str, Any], printed: RunOutput | None) -> tuple[str, dict[str, Any]]:
    """The state and the `error` of a job whose ranks ended with `code`, given what `status` knows of this run."""
    state, message = describe_end(code)
    error = status.get("error")
    known = error if isinstance(error, dict) else {}
    rank = 0 if status.get("ranks") == 1 else known.get("rank")
    if state == "stopped" or printed is None:
        return state, _error(message, signal_name(code), rank if state == "failed" else None)
    words = last_words(printed, rank, code)
    signal = words.signal or known.get("signal") or signal_name(code)
    error = _error(words.message or known.get("message") or message, signal, words.rank)
    return state, error | {"lines": list(words.lines)}


def _error(message: str, signal: str | None = None, rank: int | None = None) -> dict[str, Any]:
    return {"rank": rank, "message": message} | ({"signal": signal} if signal else {})
