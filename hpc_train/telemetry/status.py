"""status.json: how the job stands, for people and programs that look from outside."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_train.errors import JobEndedError
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.json_files import Lenient, read_json, write_json

MIN_SECS_BETWEEN_UPDATES = 1.0


class StatusFile:
    """Keeps `<job_dir>/status.json`, replaced whole each time.

    Fields: `state` (queued by hpc-train submit, running, succeeded, failed, cancelled, stopped: saved after a signal,
    to be started again, or requeued), `step`, `max_steps`, `loss`, `examples_per_sec`, `secs_left`, `input_wait`,
    `evaluation` (of the first set, the newest), `evaluations` (by set), `evaluation_lag` ({steps, secs}), `exports`,
    `export_errors` ({exporter, step, error} each), `stopped_early` ({step, reason}), `report` (its path), `error`
    ({rank, message}, and `signal` where one killed the rank), `job_id` (in Slurm, or in this machine's queue),
    `requeues`, `restarts`, `host`, `pid`, `ranks`, `started` and `updated` (seconds since 1970); in an asynchronous job
    `staleness` ({mean, max}) and `steps_by_rank`. A batch script adds `exit_code`, and to the error of a program its
    last `lines`.
    """

    def __init__(self, job_dir: Path, failure_report: Path, lenient: Lenient, **fields: Any) -> None:
        self._path, self._failure_report, self._lenient = job_dir / STATUS_FILE, failure_report, lenient
        self._fields: dict[str, Any] = {"state": "running", **fields, "started": time.time()}
        self._fields.update(host=socket.gethostname(), pid=os.getpid())
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


def read_status(job_dir: Path) -> dict[str, Any]:
    """What status.json says; empty where there is none, or none that can be read."""
    return read_json(job_dir / STATUS_FILE)


JOB_VARIABLE, REQUEUES_VARIABLE = "HPC_TRAIN_JOB_ID", "HPC_TRAIN_REQUEUES"
"""What Slurm's own variables say, for jobs that this machine's queue runs."""


def job_fields(env: Mapping[str, str]) -> dict[str, Any]:
    """The fields `job_id` (None outside a queue), `requeues` and `restarts` of a job that runs with `env`. Pure."""
    job = env.get(JOB_VARIABLE) or env.get("SLURM_JOB_ID")
    if "SLURM_ARRAY_TASK_ID" in env and JOB_VARIABLE not in env:
        job = f"{env.get('SLURM_ARRAY_JOB_ID', job)}_{env['SLURM_ARRAY_TASK_ID']}"
    counts = (env.get(name, "") for name in (REQUEUES_VARIABLE, "SLURM_RESTART_COUNT"))
    return {
        "job_id": job,
        "requeues": next((int(count) for count in counts if count.isdecimal()), 0),
        "restarts": restarts(env),
    }


def restarts(env: Mapping[str, str]) -> int:
    """How often the job was started again, by its queue and by `hpc-train launch`."""
    counts = (env.get(name, "") for name in (REQUEUES_VARIABLE, "SLURM_RESTART_COUNT", "HPC_TRAIN_RESTARTS"))
    return sum(int(count) for count in counts if count.isdecimal())


def mark_failed(job_dir: Path, rank: int, error: BaseException) -> None:
    """Sets the state of the job to failed; for the rank that failed, whichever it is."""
    path = job_dir / STATUS_FILE
    if isinstance(error, JobEndedError):
        told = {"rank": error.rank, "message": str(error)}
    else:
        told = {"rank": rank, "message": f"{type(error).__name__}: {error}"}
    end = {"state": "failed", "error": told, "updated": time.time()}
    with suppress(OSError, ValueError):  # a full or lost file system; what matters has been printed
        fields = json.loads(path.read_text()) if path.exists() else {}
        write_json(path, {**fields, **end})


def mark_ended(job_dir: Path, rank: int | None, signal_name: str | None, message: str) -> bool:
    """Sets the state of a job that has ended without saying so to failed, with what its launcher knows of the end.

    For launchers, once no rank runs any more. What the job itself has said of its end stays. `rank` and `signal_name`
    ("SIGKILL") are left out of the `error` where None. Returns whether the status was changed.
    """
    path = job_dir / STATUS_FILE
    with suppress(OSError, ValueError):  # as in mark_failed
        fields = json.loads(path.read_text())
        if fields.get("state") != "running":
            return False
        known = {"rank": rank, "signal": signal_name, "message": message}
        error = {name: value for name, value in known.items() if value is not None}
        write_json(path, {**fields, "state": "failed", "error": error, "updated": time.time()})
        return True
    return False
