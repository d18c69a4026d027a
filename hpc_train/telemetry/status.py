"""status.json, for people and programs that look from outside: the one place that reads, checks and writes it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_train.errors import JobEndedError
from hpc_train.processes import identity
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.json_files import Lenient, load_json, read_json, write_json

MIN_SECS_BETWEEN_UPDATES = 1.0
LONGEST_TIME = 1e11
JOB_NUMBER = re.compile("[0-9]{1,18}(_[0-9]{1,9})?")
"""Of jobs in queues; that of a task of an array has two parts."""


def _number(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _text(longest: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and len(value) <= longest


def _metrics(value: Any) -> bool:
    fits = lambda one: one is None or isinstance(one, float) or _whole(-LARGEST, LARGEST)(one)  # noqa: E731
    return isinstance(value, dict) and len(value) <= MOST and all(map(fits, value.values()))


def _paths(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST and all(map(_text(LONGEST), value))


LARGEST, LONGEST, MOST = 10**15, 4096, 10_000
"""Of whole numbers, of texts, and of entries: what is larger was not written by this package."""
_FITS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("state", "host", "boot_id"), _text(255)),
    **dict.fromkeys(("step", "max_steps", "ranks", "requeues", "restarts", "pid"), _whole(0, LARGEST)),
    **dict.fromkeys(("secs_left", "started", "updated"), _number(0, LONGEST_TIME)),
    **dict.fromkeys(("loss", "examples_per_sec"), _number(-sys.float_info.max, sys.float_info.max)),
    "process_start": _whole(0, 2**63),
    "exit_code": _whole(0, 255),
    "job_id": lambda value: isinstance(value, str) and JOB_NUMBER.fullmatch(value) is not None,
    "evaluation": _metrics,
    "error": lambda value: isinstance(value, dict),
    "exports": _paths,
    "folder": lambda value: isinstance(value, dict),
    "program": lambda value: isinstance(value, bool),
}
"""What is read of status.json, and whether a value of it can be used."""


class StatusFile:
    """Keeps `<job_dir>/status.json` of a running job, replaced whole each time. For the chief.

    Fields: `state` (queued by hpc-train submit, running, succeeded, failed, cancelled, stopped: saved after a signal,
    to be started again, or requeued), `step`, `max_steps`, `loss`, `examples_per_sec`, `secs_left`, `input_wait`,
    `evaluation` (of the first set, the newest), `evaluations` (by set), `evaluation_lag` ({steps, secs}), `exports`,
    `export_errors` ({exporter, step, error} each), `stopped_early` ({step, reason}), `report` (its path), `error`
    ({rank, message}, and `signal` where one killed the rank), `job_id` (in Slurm, or in this machine's queue),
    `requeues`, `restarts`, `folder` (jobdir.folder_identity), the chief's processes.identity (`host`, `pid`,
    `process_start`, `boot_id`), `ranks`, `started` and `updated` (seconds since 1970); in an asynchronous job
    `staleness` ({mean, max}) and `steps_by_rank`.
    A batch script adds `exit_code`, and to the error of a program its last `lines`.
    """

    def __init__(self, job_dir: Path, failure_report: Path, lenient: Lenient, **fields: Any) -> None:
        self._path, self._failure_report, self._lenient = job_dir / STATUS_FILE, failure_report, lenient
        self._fields: dict[str, Any] = {"state": "running", **fields, "started": time.time()}
        self._fields.update(identity())
        self._written = 0.0

    def update(self, **fields: Any) -> None:
        """Changes fields; written at once where the state changes, else about once a second.

        What a failing rank has written of the job's end stays.
        """
        self._fields.update(fields)
        now = time.time()
        if "state" in fields or now - self._written >= MIN_SECS_BETWEEN_UPDATES:
            self._written = now
            with self._lenient.writing(self._path):
                if not self._failure_report.exists():
                    # Waiting for a disk that is busy with a checkpoint would hold all ranks up.
                    write_json(self._path, {**self._fields, "updated": now}, to_disk="state" in fields)


def load_status(job_dir: Path) -> dict[str, Any]:
    """The content of status.json; errors as in json_files.load_json."""
    return load_json(job_dir / STATUS_FILE)


def read_status(job_dir: Path) -> dict[str, Any]:
    """The content of status.json; empty where there is none, or none that can be read."""
    return read_json(job_dir / STATUS_FILE)


def sound(status: Mapping[str, Any]) -> dict[str, Any]:
    """`status` without what this version does not write: another version or program may have, or somebody. Pure."""
    found = {name: status[name] for name, fits in _FITS.items() if name in status and fits(status[name])}
    if (error := found.get("error")) is not None:
        rank, signal, lines = error.get("rank"), error.get("signal"), error.get("lines")
        known: dict[str, Any] = {"rank": rank if _whole(0, LARGEST)(rank) else None}
        message = error.get("message")
        known["message"] = message[:LONGEST] if isinstance(message, str) and message else "unknown"
        known |= {"signal": signal} if _text(20)(signal) else {}
        known |= {"lines": lines[:MOST]} if isinstance(lines, list) and all(map(_text(LONGEST), lines)) else {}
        found["error"] = known
    return found


JOB_VARIABLE, REQUEUES_VARIABLE = "HPC_TRAIN_JOB_ID", "HPC_TRAIN_REQUEUES"
"""The values of Slurm's own variables, for jobs that this machine's queue runs."""


def job_fields(env: Mapping[str, str]) -> dict[str, Any]:
    """The fields `job_id` (None outside a queue), `requeues` and `restarts` of a job that runs with `env`. Pure."""
    job = env.get(JOB_VARIABLE) or env.get("SLURM_JOB_ID")
    if "SLURM_ARRAY_TASK_ID" in env and JOB_VARIABLE not in env:
        job = f"{env.get('SLURM_ARRAY_JOB_ID', job)}_{env['SLURM_ARRAY_TASK_ID']}"
    names = (REQUEUES_VARIABLE, "SLURM_RESTART_COUNT", "HPC_TRAIN_RESTARTS")
    counts = {name: int(env[name]) for name in names if env.get(name, "").isdecimal()}
    return {
        "job_id": job,
        "requeues": counts.get(REQUEUES_VARIABLE, counts.get("SLURM_RESTART_COUNT", 0)),
        "restarts": sum(counts.values()),  # by its queue and by `hpc-train launch`
    }


def mark_queued(job_dir: Path) -> None:
    """The job has been submitted and waits; what earlier runs have reached stays. For `hpc-train submit`.

    Raises:
        OSError: The file cannot be written.
    """
    _change(job_dir, state="queued", job_id=None, error=None, exit_code=None, secs_left=None)


def mark_begun(job_dir: Path, ranks: int, pid: int, env: Mapping[str, str], **more: Any) -> None:
    """A program of the user's own is about to run. For what starts its ranks: the process `pid`, in `env`.

    Replaces the file; no error where it cannot be written.
    """
    now = time.time()
    fields = {"state": "running", "program": True, "ranks": ranks, **job_fields(env), **more}
    fields |= {**identity(pid), "started": now, "updated": now}
    with suppress(OSError):
        write_json(job_dir / STATUS_FILE, fields)


def mark_failed(job_dir: Path, rank: int, error: BaseException) -> None:
    """The job has failed. For the rank that did, whichever it is. No error where the file cannot be written."""
    known: dict[str, Any] = {"rank": rank, "message": f"{type(error).__name__}: {error}"}
    if isinstance(error, JobEndedError):
        known = {"rank": error.rank, "message": str(error)}
    with suppress(OSError):  # a full or lost file system; what matters has been printed
        _change(job_dir, state="failed", error=known)


def mark_ended(job_dir: Path, rank: int | None, signal_name: str | None, message: str) -> bool:
    """A job has failed whose status is running. For its launcher, once no rank runs any more, and for the watchdog.

    What the job itself has reported of its end is kept. `rank` and `signal_name` ("SIGKILL") are left out of the
    `error` where None. Returns whether the status was changed; no error where it cannot be.
    """
    if read_status(job_dir).get("state") != "running":
        return False
    known = {"rank": rank, "signal": signal_name, "message": message}
    with suppress(OSError):  # as in mark_failed
        _change(job_dir, state="failed", error={name: value for name, value in known.items() if value is not None})
        return True
    return False


def mark_outcome(
    job_dir: Path, state: str, exit_code: int | None, error: Mapping[str, Any] | None, run: Mapping[str, Any]
) -> None:
    """How the ranks ended. For the batch script and this machine's queue, which have seen it from outside.

    `error` and `exit_code` are taken out where None; `run` has more fields. No error where the file cannot be written.
    """
    with suppress(OSError):  # as in mark_failed; the job's output has the same
        _change(job_dir, **run, state=state, exit_code=exit_code, error=error)


def mark_exit_code(job_dir: Path, exit_code: int) -> None:
    """As mark_outcome, of ranks that have reported themselves how they ended."""
    with suppress(OSError):
        _change(job_dir, exit_code=exit_code)


def _change(job_dir: Path, **fields: Any) -> None:
    """Replaces fields of status.json, takes those out that are None, and notes the time."""
    changed = {**read_status(job_dir), **fields, "updated": time.time()}
    gone = {name for name, value in fields.items() if value is None}
    write_json(job_dir / STATUS_FILE, {name: value for name, value in changed.items() if name not in gone})
