"""What becomes of the ranks of a launcher; shells stand in for both."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.jobs.launch.launchers.open_mpi import SESSION_VARIABLE, SESSION_VARIABLES
from hpc_train.telemetry.status import SUPERVISOR_VARIABLE
from hpc_train.tuning.execution.fresh_ranks import FreshRanks
from hpc_train.tuning.execution.slots import Slot
from tests.support import is_gone, wait_for

DRIVER = "fedcba9876543210"
RANK = f"{SUPERVISOR_VARIABLE}=$$ setsid sleep 1000 & echo $! >pid.new; mv pid.new pid; wait"
LAUNCHER = f"mkdir ${SESSION_VARIABLE}/mpirun; {RANK}"


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SESSION_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: start(["bash", "-c", LAUNCHER], **options))
    command: Any = SimpleNamespace(log=tmp_path / "logs/job.out", ranks=1, words=lambda: [], job_dir=tmp_path)
    run: Any = FreshRanks(Slot(0, (0,), is_bound=False), DRIVER).begin(command)
    wait_for(Path("pid").exists, "the launcher's rank")
    assert run.code() is None
    (session,) = Path(tempfile.gettempdir()).glob(f"ompi-{DRIVER}-*/mpirun")
    os.kill(run._process.pid, signal.SIGKILL)
    assert wait_for(run.code, "the launcher's end") == 128 + signal.SIGKILL
    assert is_gone(int(Path("pid").read_text()))
    assert not session.parent.exists()
