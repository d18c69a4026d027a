"""status.json: how the job stands, for people and programs that look from outside."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_train.monitoring.files import write_json

STATUS_FILE = "status.json"
MIN_SECS_BETWEEN_UPDATES = 1.0


class StatusFile:
    """Keeps `<job_dir>/status.json`, replaced whole each time.

    Fields: `state` (running, succeeded, failed or stopped: saved after a signal, to be started again), `step`,
    `max_steps`, `loss`, `examples_per_sec`, `evaluation`, `exports`, `error` ({rank, message}), `host`, `pid`,
    `ranks`, `started` and `updated` (seconds since 1970).
    """

    def __init__(self, job_dir: Path, failure_report: Path, **fields: Any) -> None:
        self._path, self._failure_report = job_dir / STATUS_FILE, failure_report
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
            if not self._failure_report.exists():
                write_json(self._path, {**self._fields, "updated": now})


def mark_failed(job_dir: Path, rank: int, error: BaseException) -> None:
    """Sets the state of the job to failed; for the rank that failed, whichever it is."""
    path = job_dir / STATUS_FILE
    message = f"{type(error).__name__}: {error}"
    end = {"state": "failed", "error": {"rank": rank, "message": message}, "updated": time.time()}
    with suppress(OSError, ValueError):  # a full or lost file system; what matters has been printed
        fields = json.loads(path.read_text()) if path.exists() else {}
        write_json(path, {**fields, **end})
