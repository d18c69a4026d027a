"""slurm/train.sh: which jobs have guards for their ranks. Slurm, mpirun and hpc-train are stand-ins."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_train.resilience.guard import ALLOWED
from tests.support import LIMIT_SECS, REPOSITORY

PROGRAMS = {
    "mpirun": f'[ "$1" != --version ] || exec echo "mpirun (Open MPI) 4.1.8"\necho "allowed: ${ALLOWED}"',
    "hpc-train": "exit 0",
    "scontrol": "echo JobState=RUNNING EndTime=Unknown",
}


@pytest.mark.parametrize(
    ("text", "arguments", "env", "expected"),
    [
        ("run:\n  on_lost_worker: continue\n", [], {}, "1"),
        ("run: {'on_lost_worker' : \"continue\"}\n", [], {}, "1"),
        ("run:\n  on_lost_worker: end\n", [], {}, ""),
        ("run:\n  on_lost_worker: end\n", ["--set", "run.on_lost_worker=continue"], {}, "1"),
        ("run:\n  on_lost_worker: end\n", ["--set=run.on_lost_worker=continue"], {}, "1"),
        ("run:\n  on_lost_worker: continue\n", [], {ALLOWED: "0"}, "0"),
        ("run:\n  strategy: async\n", ["--job-dir", "on_lost_worker"], {}, ""),
    ],
)
def test_guards(tmp_path: Path, text: str, arguments: list[str], env: dict[str, str], expected: str) -> None:
    (tmp_path / "slurm").symlink_to(REPOSITORY / "slurm")  # a checkout without a .venv
    (tmp_path / "my job.yaml").write_text(text)
    (tmp_path / "bin").mkdir()
    for name, body in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "3", "SLURM_JOB_NUM_NODES": "1", "HPC_TRAIN_HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(REPOSITORY / "slurm/train.sh"), "my job.yaml", *arguments],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "TMPDIR": str(tmp_path), **job, **env},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECS,
    )
    assert (done.returncode, done.stdout) == (0, f"allowed: {expected}\n"), done.stderr
