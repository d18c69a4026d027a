from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.cluster.quiet import CHATTER
from hpc_train.jobs.local import mpirun_command
from hpc_train.resilience.signals import StopSignals
from tests.support import environment

PROGRAM = ["python", "-m", "hpc_train", "train", "a; rm -rf ~.yaml"]


def test_mpirun_gets_arguments_not_a_command_line() -> None:
    command, settings = mpirun_command("mpirun", "mpirun (Open MPI) 4.1.8", 3, PROGRAM, as_root=True, env={})
    assert command[-len(PROGRAM) :] == PROGRAM
    assert command[: -len(PROGRAM)] == ["mpirun", "--oversubscribe", "--bind-to", "none", "--quiet", "-np", "3"]
    assert settings == {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command, settings = mpirun_command("mpirun", "HYDRA build details:", 2, PROGRAM, as_root=True, env={})
    assert command == ["mpirun", "-bind-to", "none", "-np", "2", *PROGRAM]
    assert settings == {}


def test_signals_only_set_a_flag_until_they_are_no_longer_wanted() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.received == "SIGUSR1"
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_late_signal_does_not_change_the_exit_code() -> None:
    code = """
import os, signal, sys
from hpc_train.resilience.signals import StopSignals
try:
    with StopSignals():
        sys.exit(3)
finally:
    os.kill(os.getpid(), signal.SIGUSR1)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60)
    assert done.returncode == 3


def test_chatter_is_dropped_and_errors_are_not() -> None:
    code = """
import os
from hpc_train.cluster.quiet import without_chatter
with without_chatter():
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
    os.write(2, b"I0000 00:00:1795165239.239018    7069 port.cc:153] oneDNN custom operations are on.\\n")
    os.write(2, b"2026-11-20 09:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] Optimized\\n")
    os.write(2, b"E0000 00:00:1795165239.239018    7069 cuda.cc:1] no device\\n")
    os.write(2, b"last words")
    os.abort()
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr.splitlines() == ["E0000 00:00:1795165239.239018    7069 cuda.cc:1] no device", "last words"]
    assert not re.search(CHATTER, "Traceback (most recent call last):")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launch", "-n", "0", "job.yaml"], "--ranks"),
        (["launch", "job.yaml"], "job.yaml: cannot be read"),
        (["train"], "Missing argument"),
        (["trian", "job.yaml"], "No such command"),
    ],
)
def test_wrong_command_lines_exit_with_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "hpc_train", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in re.sub(r"\s+", " ", done.stderr)
    assert not list(tmp_path.iterdir())
