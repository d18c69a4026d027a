"""What is made of the end of an mpirun, or of an srun, for which a shell stands in."""

from __future__ import annotations

import json
import shlex
import tempfile
import threading
from pathlib import Path

import pytest

from hpc_train.jobs.launch.launchers.open_mpi import SESSION_VARIABLE, SESSION_VARIABLES
from hpc_train.jobs.launch.launchers.srun import Srun
from hpc_train.jobs.launch.launchers.start import Start
from hpc_train.jobs.launch.run import run_supervised
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


@pytest.mark.parametrize(
    ("says", "leaves_with", "code", "why"),
    [
        ("srun: forcing job termination\nsrun: error: n2: task 1: Killed", 137, 143, "srun was ended by a signal"),
        ("srun: error: n2: task 1: Killed", 143, 137, "rank 1 on n2 was killed by SIGKILL"),
        ("srun: error: n2: task 1: Exited with exit code 7", 143, 7, "rank 1 on n2 left with code 7 without finishing"),
        ("srun: error: Node failure on n2", 137, 205, "the job ended with exit code 205"),
        (
            "srun: error: Node failure on n2\nsrun: error: n1: task 0: Killed",
            137,
            205,
            "the job ended with exit code 205",
        ),
        ("srun: error: n2: task 1: Out Of Memory", 253, 137, "rank 1 on n2 was killed by SIGKILL (out of memory)"),
    ],
)
def test_srun_ends_as_mpirun_does(
    says: str, leaves_with: int, code: int, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = json.dumps({"state": "running", "host": "n1", "pid": 1, "started": 1.0})
    script = f"echo {shlex.quote(status)} >status.json; echo {shlex.quote(says)} >&2; exit {leaves_with}"
    start = Start(("bash", "-c", script), {}, tmp_path, Srun)
    assert run_supervised(start, tmp_path, 0, StopSignals(), threading.Event()) == code
    assert capfd.readouterr().err.splitlines()[-1] == f"hpc-train: {why}"
    assert (read_status(tmp_path)["state"], read_status(tmp_path)["error"]["message"]) == ("failed", why)


@pytest.mark.parametrize("given", [True, False])
def test_mpirun_has_a_folder_that_goes_unless_one_was_given(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in SESSION_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(SESSION_VARIABLE, "given")
    start = Start(("bash", "-c", f"echo ompi-* >seen; echo ${SESSION_VARIABLE} >>seen"), {}, tmp_path)
    run_supervised(start, tmp_path, 0, StopSignals(), threading.Event())
    there, told = (tmp_path / "seen").read_text().split()
    assert (there, told) == ("ompi-*", "given") if given else told == str(tmp_path / there)
    assert not list(tmp_path.glob("ompi-*"))


def test_an_mpirun_that_waits_for_a_helper_which_cannot_start_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    says = f"{'-' * 74}\nIt looks like orte_init failed for some reason; your parallel process is\n{'-' * 74}"
    script = f"echo {shlex.quote(says)} >&2; exec sleep 36000"
    start = Start(("bash", "-c", script), {}, tmp_path)
    assert run_supervised(start, tmp_path, 1, StopSignals(), threading.Event()) == 1
    said = capfd.readouterr().err
    assert said.count("orte_init failed") == 2 and "could not start on a host" in said
