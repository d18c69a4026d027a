"""slurm/ranks.sh with srun as its launcher: which PMI it takes, and what becomes of srun's codes; with stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import LIMIT_SECS, REPOSITORY

PROGRAMS = {
    "mpirun": 'echo "mpirun ($MPI) 4.1.8"',
    "srun": """[ "$1" = --mpi=list ] && { echo "MPI plugin types are..."; echo "	$KINDS"; exit; }
echo "$*"
printf '%b' "$NOTES" >&2
exit "$CODE"
""",
    "scontrol": """case "$1 $2" in
"show config") echo "MpiDefault              = $DEFAULT" ;;
"show job") echo "JobId=7 JobState=RUNNING Reason=None Requeue=0 Restarts=0" ;;
esac
""",
    "hpc-train": "exit 0",
}
SCRIPT = """
command=(train) record=() again=(again) program='' alone='' log_dir='' threads='' me=test stop='' launcher=srun
source "$RANKS_SH"
"""


NOISE = """srun: launch/slurm: _step_signal: Terminating StepId=1.1
srun: Force Terminated StepId=1.1
srun: Job step aborted: Waiting up to 22 seconds for job step to finish.
srun: forcing job termination
slurmstepd-n1: error: *** STEP 1.6 ON n1 CANCELLED AT 2026-11-28T18:54:12 ***
"""


def run(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o700)
    usual = {"MPI": "Open MPI", "KINDS": "pmix", "DEFAULT": "none", "NOTES": "", "CODE": "0", "TMPDIR": str(folder)}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "3", "min_nodes": ""}
    where = {"PATH": f"{folder}:{os.environ['PATH']}", "RANKS_SH": str(REPOSITORY / "slurm/ranks.sh")}
    command = ["bash", "-c", SCRIPT]
    return subprocess.run(
        command, env={**usual, **slurm, **where, **env}, capture_output=True, text=True, timeout=LIMIT_SECS
    )


@pytest.mark.parametrize(
    ("code", "notes", "ends_with"),
    [
        ("143", "n1: task 1: Exited with exit code 2\nsrun: error: n2: tasks 2-3: Terminated", 2),
        ("3", "n1: task 1: Exited with exit code 1\nsrun: error: n2: tasks 2-3: Exited with exit code 3", 1),
        ("143", "n1: task 1: Killed\nsrun: error: n1: task 0: Terminated", 137),
        ("5", "n1: task 0: Killed\nsrun: error: n1: task 1: Exited with exit code 5", 5),
        ("137", "Node failure on n2", 205),
        ("253", "n1: task 0: Out Of Memory", 137),
        ("0", "n1: nothing of note", 0),
    ],
)
def test_the_code_is_that_of_the_first_rank_to_end(tmp_path: Path, code: str, notes: str, ends_with: int) -> None:
    ended = run(tmp_path, CODE=code, NOTES=f"a rank\n{NOISE}srun: error: {notes}\n")
    assert ended.returncode == ends_with, ended.stderr
    assert ended.stderr == f"a rank\nsrun: error: {notes}\n"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "its folder for srun's notes is gone"


def test_the_kind_of_pmi(tmp_path: Path) -> None:
    rest = "--ntasks=4 --cpus-per-task=3 --cpu-bind=none --kill-on-bad-exit=1 --export=ALL train\n"
    assert run(tmp_path).stdout == f"--mpi=pmix {rest}"
    assert run(tmp_path, KINDS="none pmix_v3 pmix_v4").stdout == f"--mpi=pmix_v4 {rest}"
    assert run(tmp_path, KINDS="pmi2 none", MPI="HYDRA").stdout == f"--mpi=pmi2 {rest}"
    assert run(tmp_path, DEFAULT="cray_shasta").stdout == rest == run(tmp_path, SLURM_MPI_TYPE="pmix_v2").stdout
    for env, why in (
        ({"KINDS": "pmi2 none"}, "srun here has no pmix"),
        ({"min_nodes": "1"}, "need launcher: mpirun"),
        ({"SLURM_HET_SIZE": "2"}, "heterogeneous jobs need launcher: mpirun"),
    ):
        refused = run(tmp_path, **env)
        assert (refused.returncode, refused.stdout) == (2, "") and why in refused.stderr
