"""status.json, for people and programs that look from outside: the one place that reads, checks and writes it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_train.processes import identity
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.json_files import Lenient, load_json, read_json, write_json

MIN_SECS_BETWEEN_UPDATES = 1.0
LONGEST_TIME = 1e11
LARGEST_COUNT = 1 << 62
"""More than any step, process id or number of ranks."""
LARGEST_NUMBER = sys.float_info.max
LONGEST_TEXT, MOST_ENTRIES = 4096, 10_000
"""What is longer is shortened; more was not written by this package."""
JOB_NUMBER = re.compile("[0-9]{1,18}(_[0-9]{1,9})?")
"""Of jobs in queues; that of a task of an array has two parts."""


class StatusFile:
    """Keeps `<job_dir>/status.json` of a running job, replaced whole each time. For the chief.

    Fields: `state` (queued by hpc-train submit, running, succeeded, failed, cancelled, stopped: saved after a signal,
    to be started again, or requeued), `step`, `max_steps`, `loss`, `examples_per_sec`, `secs_left`, `input_wait`,
    `evaluation` (of the first set, the newest), `evaluations` (by set), `evaluation_lag` ({steps, secs}), `exports`,
    `export_errors` ({exporter, step, error} each), `stopped_early` ({step, reason}), `report` (its path), `error`
    ({rank, message}, `signal` where one killed the rank, and where an exception ended it, `doing`: what the rank was
    at, as in "training step 8", and `where`: the user's line), `job_id` (in Slurm, or in this machine's queue),
    `requeues`, `restarts`, `restart_reason` (why the ranks were started again, and where), `output`
    (the file that has what the job prints, where there is one), `command` and `cwd` (what starts it again, and where),
    `folder` (jobdir.folder_identity), the chief's processes.identity (`host`, `pid`, `process_start`, `boot_id`),
    `supervisor` (that of `hpc-train launch`, which may start the job again), `ranks`, `started` and `updated` (seconds
    since 1970); in an asynchronous job `staleness` ({mean, max}), `steps_by_rank`, and `lost_ranks` where it went on
    without some. `energy` is as EnergyAccount.field describes it; `slow_ranks` ({rank, host, ratio, step, why} each):
    those that hold the others up. `staged` is as StagedData.field describes it.
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
        if "state" in fields or time.time() - self._written >= MIN_SECS_BETWEEN_UPDATES:
            self.write(to_disk="state" in fields)

    def write(self, to_disk: bool = True) -> None:
        """Writes the fields as they are now."""
        self._written = now = time.time()
        with self._lenient.writing(self._path):
            if not self._failure_report.exists():
                # Waiting for a disk that is busy with a checkpoint would hold all ranks up.
                write_json(self._path, {**self._fields, "updated": now}, to_disk)


def load_status(job_dir: Path) -> dict[str, Any]:
    """The content of status.json; errors as in json_files.load_json."""
    return load_json(job_dir / STATUS_FILE)


def read_status(job_dir: Path) -> dict[str, Any]:
    """The content of status.json; empty where there is none, or none that can be read."""
    return read_json(job_dir / STATUS_FILE)


def sound(status: Mapping[str, Any]) -> dict[str, Any]:
    """`status` without what this version would not write: another version or program may have. Pure.

    Every value is what StatusFile says it is: whole numbers are counts, other numbers are finite, an evaluation has
    numbers alone, an error its message; and all text can be printed.
    """
    found = {name: _SOUND[name](value) for name, value in status.items() if name in _SOUND}
    return {name: value for name, value in found.items() if value is not None}


def _printable(text: str) -> str:
    """JSON can name halves of characters, which no terminal takes."""
    return text.encode(errors="replace").decode()


def _text(value: Any) -> str | None:
    return _printable(_shortened(value)) if isinstance(value, str) else None


def _shortened(text: str) -> str:
    """At most LONGEST_TEXT characters: both its ends; TensorFlow's errors end with what a model has raised."""
    if len(text) <= LONGEST_TEXT:
        return text
    first = LONGEST_TEXT // 4
    return f"{text[:first]} … {text[first + 3 - LONGEST_TEXT :]}"


def _job_id(value: Any) -> str | None:
    return value if isinstance(value, str) and JOB_NUMBER.fullmatch(value) else None


def _whole(value: Any) -> str | None:
    """A text that is of no use where it is shortened."""
    return _printable(value) if isinstance(value, str) and value and len(value) <= LONGEST_TEXT else None


def _mapping(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _count(value: Any) -> int | None:
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT
    return value if is_one else None


def _exit_code(value: Any) -> int | None:
    code = _count(value)
    return code if code is None or code <= 255 else None


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -LARGEST_NUMBER <= value <= LARGEST_NUMBER else None


def _time(value: Any) -> int | float | None:
    number = _number(value)
    return number if number is None or 0 <= number < LONGEST_TIME else None


def _evaluation(value: Any) -> dict[str, Any] | None:
    """None stands for a number that is not finite."""
    if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
        return None
    return {_printable(name): number for name, number in value.items() if number is None or _number(number) is not None}


def _error(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    known: dict[str, Any] = {name: _text(value.get(name)) for name in ("signal", "doing", "where")}
    known["lines"] = _texts(value.get("lines"))
    return {
        "rank": _count(value.get("rank")),
        "message": _text(value.get("message")) or "unknown",
        **{name: part for name, part in known.items() if part is not None},
    }


def _texts(value: Any) -> list[str] | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return [_printable(_shortened(item)) for item in value[:MOST_ENTRIES]]


def sound_energy(value: Any) -> dict[str, Any] | None:
    """The field `energy` as this version writes it, None where it is none."""
    if not isinstance(value, dict):
        return None
    known: dict[str, Any] = {
        name: _positive(value.get(name)) for name in ("joules", "total_joules", "per_1000_examples")
    }
    known |= {"not_measured": _text(value.get("not_measured")), "complete": _flag(value.get("complete"))}
    nodes = value.get("nodes")
    if isinstance(nodes, list) and all(isinstance(node, dict) for node in nodes):
        known["nodes"] = [
            {"host": _text(node.get("host"))}
            | {name: _positive(node.get(name)) for name in ("joules", "secs")}
            | {name: _text(node.get(name)) or "" for name in ("covers", "lacks")}
            for node in nodes[:MOST_ENTRIES]
        ]
    return {name: part for name, part in known.items() if part is not None}


def sound_slow_ranks(value: Any) -> list[dict[str, Any]] | None:
    """The field `slow_ranks` as this version writes it, None where it is none."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        return None
    kinds = {"rank": _count, "step": _count, "ratio": _positive, "host": _text, "why": _text}
    known = [{name: kind(entry.get(name)) for name, kind in kinds.items()} for entry in value[:MOST_ENTRIES]]
    return [entry for entry in known if None not in entry.values()]


def sound_staged(value: Any) -> dict[str, Any] | None:
    """The field `staged` as this version writes it, None where it is none."""
    if not isinstance(value, dict):
        return None
    kinds: dict[str, Callable[[Any], Any]] = {"folder": _text, "of_bytes": _count, "nodes": _count}
    if "bytes" in value or "secs" in value:
        kinds |= {"bytes": _count, "secs": _positive}
    known = {name: kind(value.get(name)) for name, kind in kinds.items()}
    return None if None in known.values() else known


def _positive(value: Any) -> int | float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_SOUND: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("state", "host", "boot_id", "restart_reason"), _text),
    **dict.fromkeys(("output", "command", "cwd"), _whole),
    "job_id": _job_id,
    **dict.fromkeys(("folder", "supervisor"), _mapping),
    **dict.fromkeys(("step", "max_steps", "ranks", "requeues", "restarts", "pid", "process_start"), _count),
    **dict.fromkeys(("started", "updated", "secs_left"), _time),
    **dict.fromkeys(("loss", "examples_per_sec"), _number),
    "exit_code": _exit_code,
    "evaluation": _evaluation,
    "energy": sound_energy,
    "slow_ranks": sound_slow_ranks,
    "staged": sound_staged,
    "error": _error,
    "exports": _texts,
    "program": _flag,
}
"""What is read of status.json: a field's value as this version writes it, None where it is none."""


JOB_VARIABLE, REQUEUES_VARIABLE = "HPC_TRAIN_JOB_ID", "HPC_TRAIN_REQUEUES"
"""The values of Slurm's own variables, for jobs that this machine's queue runs."""
RESTARTS_VARIABLE = "HPC_TRAIN_RESTARTS"
"""Set for the ranks of `hpc-train launch` and of this machine's queue."""
RESTART_REASON_VARIABLE = "HPC_TRAIN_RESTART_REASON"
"""Set by a batch script for ranks that it starts again: why, on one line."""
SUPERVISOR_VARIABLE = "HPC_TRAIN_SUPERVISOR"
"""Set for the ranks of `hpc-train launch`: its pid."""


def job_fields(env: Mapping[str, str]) -> dict[str, Any]:
    """The fields `job_id` (None outside a queue), `requeues`, `restarts` and `restart_reason`, of a job in `env`. Pure.

    The last one is there only where a batch script has started the ranks again.
    """
    job = env.get(JOB_VARIABLE) or env.get("SLURM_JOB_ID")
    if "SLURM_ARRAY_TASK_ID" in env and JOB_VARIABLE not in env:
        job = f"{env.get('SLURM_ARRAY_JOB_ID', job)}_{env['SLURM_ARRAY_TASK_ID']}"
    names = (REQUEUES_VARIABLE, "SLURM_RESTART_COUNT", RESTARTS_VARIABLE)
    counts = {name: int(env[name]) for name in names if env.get(name, "").isdecimal()}
    return {
        "job_id": job,
        "requeues": counts.get(REQUEUES_VARIABLE, counts.get("SLURM_RESTART_COUNT", 0)),
        "restarts": sum(counts.values()),  # by its queue and by `hpc-train launch`
        **({"restart_reason": reason} if (reason := env.get(RESTART_REASON_VARIABLE)) else {}),
    }


OUTPUT_VARIABLE, COMMAND_VARIABLE = "HPC_TRAIN_OUTPUT", "HPC_TRAIN_COMMAND"
"""What starts the ranks sets them: the file that it prints into, and the command that starts the job again."""


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


def mark_failed(job_dir: Path, error: Mapping[str, Any], step: int | None) -> None:
    """The job has failed. For the rank that did, whichever it is. No error where the file cannot be written.

    Args:
        error: The field of this name.
        step: The last one that was done; None: not known beyond what the status has.
    """
    fields = {} if step is None else {"step": step}
    with suppress(OSError):  # a full or lost file system; what matters has been printed
        _change(job_dir, state="failed", error=error, **fields)


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
