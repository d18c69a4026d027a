"""The end of a Slurm job, as slurm/ranks.sh sees it: noted in the job-dir, where killed ranks could not do so."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from hpc_train.config.yaml_loader import read_yaml
from hpc_train.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_NOT_REQUEUED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    UserError,
)
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import STATUS_FILE, SUBMISSION_FILE
from hpc_train.jobs.launch.error_excerpt import Printed, last_words
from hpc_train.jobs.launch.progress_check import why_not_again
from hpc_train.telemetry.json_files import read_json, write_json
from hpc_train.telemetry.status import job_fields, read_status

Requeue = Literal["warning", "preemption", "lost-node"]
"""Why slurm/ranks.sh has Slurm start a job again."""

_AFTER_SAVING = (EXIT_STOPPED, EXIT_TERMINATED, EXIT_INTERRUPTED)


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
    """Whether `job_dir` was made by the submission with this token, as its SUBMISSION_FILE says."""
    return bool(read_json(job_dir / SUBMISSION_FILE).get("token") == submission)


def record_begin(job_dir: Path | None, submission: str | None, ranks: int, pid: int) -> None:
    """Notes in `job_dir` that a program of the user's own is about to run on `ranks` ranks.

    Args:
        submission: The token that `job_dir` has to be of; otherwise it is left alone.
        pid: Of the process that starts them.

    Replaces status.json; nothing where there is no job-dir, and no error for what cannot be written.
    """
    if job_dir is None or not job_dir.is_dir() or (submission is not None and not is_own(job_dir, submission)):
        return
    now = time.time()
    fields = {"state": "running", "program": True, "ranks": ranks, **job_fields(os.environ)}
    fields |= {"host": socket.gethostname(), "pid": pid, "started": now, "updated": now}
    with suppress(OSError):
        write_json(job_dir / STATUS_FILE, fields)


def record_end(
    job_dir: Path | None,
    code: int,
    requeue: Requeue | None,
    submission: str | None = None,
    program: bool = False,
    printed: Printed | None = None,
    cancelled: bool = False,
) -> int:
    """Notes in `job_dir` that the ranks have ended with `code` (EXIT_NOT_REQUEUED: stopped, and not requeued either).

    Args:
        requeue: Why the job is about to go back into the queue, or None if it is not.
        submission: The token that `job_dir` has to be of; otherwise it is left alone. All ends of a submission are
            noted; EXIT_BAD_INPUT means of others that the job-dir may be another job's.
        program: The ranks ran a program of the user's own, which writes no status.json.
        printed: Where to look for the error, if the ranks did not tell it.
        cancelled: The queue has ended the job since somebody asked for that; what the ranks said of it is no error.

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
            print(f"hpc-train: {problem}", flush=True)
            _set_status(job_dir, **run, state="stopped", error=_error(problem), exit_code=EXIT_NOT_REQUEUED)
            return EXIT_NOT_REQUEUED
    status = read_status(job_dir) if job_dir is not None else {}
    if own and (
        status.get("state") == "queued" or any(status.get(name) != run[name] for name in ("job_id", "requeues"))
    ):
        status = {}  # this run has said nothing
    said = status.get("state")
    if requeue is not None:
        _set_status(job_dir, **run, state="requeued", error=None, exit_code=None)
    elif cancelled:
        if said != "succeeded" and (own or said in ("running", "requeued")):
            _set_status(job_dir, **run, state="cancelled", error=None, exit_code=code)
    elif code == EXIT_NOT_REQUEUED:
        message = "the job was stopped, and scontrol could not put it back into the queue"
        _set_status(job_dir, **run, state="stopped", error=_error(message), exit_code=code)
    elif code == 0:
        if program:
            _set_status(job_dir, **run, state="succeeded", error=None, exit_code=0)
    elif said in ("running", "requeued") or (own and (said is None or (program and printed is not None))):
        ended, error = _describe(code, status, printed)
        _set_status(job_dir, **run, state=ended, error=error, exit_code=code)
    elif own:
        _set_status(job_dir, exit_code=code)
    return 0


def describe_end(code: int) -> tuple[str, str]:
    """The state of a job whose ranks ended with `code` and did not say how, and a sentence about it. Pure."""
    name = signal_name(code)
    message = f"the ranks ended with code {code}" + (f" (killed by {name})" if name else "")
    return ("stopped" if code in _AFTER_SAVING else "failed"), message


def signal_name(code: int) -> str | None:
    """The signal that an exit code of mpirun stands for ("SIGKILL" for 137), or None. Pure."""
    try:
        return signal.Signals(code - 128).name if code > 128 else None
    except ValueError:
        return None


def newest_step(job_dir: Path) -> int | None:
    """The step of the newest checkpoint, or None. None is read or verified."""
    return max(JobDir(job_dir).checkpoints(), default=None)


def _describe(code: int, status: Mapping[str, Any], printed: Printed | None) -> tuple[str, dict[str, Any]]:
    """The state and the `error` of a job whose ranks ended with `code`, given what `status` knows of this run."""
    state, message = describe_end(code)
    error = status.get("error")
    known = error if isinstance(error, dict) else {}
    rank = 0 if status.get("ranks") == 1 else known.get("rank")
    if state == "stopped" or printed is None:
        return state, _error(message, signal_name(code), rank if state == "failed" else None)
    words = last_words(printed, rank)
    signal = words.signal or known.get("signal") or signal_name(code)
    error = _error(words.message or known.get("message") or message, signal, words.rank)
    return state, error | {"lines": list(words.lines)}


def _error(message: str, signal_name: str | None = None, rank: int | None = None) -> dict[str, Any]:
    return {"rank": rank, "message": message} | ({"signal": signal_name} if signal_name else {})


def _set_status(job_dir: Path | None, **fields: Any) -> None:
    """Changes fields of status.json, takes those out that are None, and notes the time."""
    if job_dir is None or not job_dir.is_dir():
        return
    changed = {**read_status(job_dir), **fields, "updated": time.time()}
    with suppress(OSError):  # a full or lost file system; the job's output says the same
        write_json(job_dir / STATUS_FILE, {name: value for name, value in changed.items() if value is not None})
