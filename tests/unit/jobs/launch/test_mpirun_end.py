"""What is made of the end of an mpirun, for which a shell stands in."""

from __future__ import annotations

import json
import shlex
import threading
from pathlib import Path

import pytest

from hpc_train.jobs.launch.mpirun import Start, run_supervised
from hpc_train.resilience.signals import StopSignals
from hpc_train.telemetry.status import read_status

RANK_LEFT = (
    "-" * 74
    + "\nmpirun detected that one or more processes exited\n Process name: [[1,1],0]\n Exit code: 1\n"
    + "-" * 74
)


@pytest.mark.parametrize(
    ("state", "says", "code"),
    [
        ("running", "", 143),  # so ends an mpirun that gets SIGTERM
        ("running", RANK_LEFT, 1),
        ("failed", "", 1),
    ],
)
def test_a_job_has_not_failed_where_mpirun_was_told_to_end(state: str, says: str, code: int, tmp_path: Path) -> None:
    status = json.dumps({"state": state, "host": "n1", "pid": 1, "started": 1.0})
    script = f"echo {shlex.quote(status)} >status.json; echo {shlex.quote(says)} >&2; exit 1"
    start = Start(("bash", "-c", script), {}, tmp_path)
    assert run_supervised(start, tmp_path, 0, StopSignals(), threading.Event()) == code
    assert read_status(tmp_path)["state"] == "failed"
