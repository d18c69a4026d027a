"""hpc-train doctor on this machine as it is, and in an environment that has no mpirun."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support import run_program

CHECKS = [
    "Python", "TensorFlow", "Horovod", "MPI", "mpirun", "two ranks", "one-sided", "shared memory", "GPUs", "NCCL",
    "energy", "Slurm", "site", "job-dir", "locks", "write speed", "limits",
]  # fmt: skip


def read(text: str) -> dict[str, dict[str, Any]]:
    return {line["check"]: line for line in map(json.loads, text.splitlines())}


def test_the_demo_can_run_here(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpc_train", "doctor", "--job-dir", str(tmp_path / "runs"), "--json"]
    done = run_program(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = read(done.stdout)
    assert [check for check in found if check not in ("partitions", "PMI")] == CHECKS
    for line in found.values():
        assert list(line) == ["check", "result", "found", "advice", "needed"]
        assert line["result"] in ("ok", "warning", "fails", "not here")
        assert line["advice"] or line["result"] in ("ok", "not here")
    for check in ("Python", "TensorFlow", "Horovod", "MPI", "mpirun", "two ranks", "one-sided", "locks"):
        assert found[check]["result"] == "ok", found[check]
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    assert done.stderr == ""


def test_without_mpirun_the_demo_cannot_run(tmp_path: Path) -> None:
    environment, here = tmp_path / "environment", Path(sys.prefix)
    (environment / "bin").mkdir(parents=True)
    (environment / "lib").symlink_to(here / "lib")
    (environment / "pyvenv.cfg").write_bytes((here / "pyvenv.cfg").read_bytes())
    python = environment / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    done = run_program(
        [str(python), "-m", "hpc_train", "doctor", "--job-dir", str(tmp_path)],
        tmp_path,
        240,
        PATH=str(tmp_path),
        COLUMNS="80",
        HPC_TRAIN_PROGRESS="lines",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert "\x1b" not in done.stdout
    [at] = [number for number, line in enumerate(lines) if line.startswith("mpirun ")]
    assert "fails" in lines[at]
    assert "→ load an MPI module" in lines[at + 1]
    assert lines[-1] == "The demo cannot run here: see mpirun, two ranks above."
