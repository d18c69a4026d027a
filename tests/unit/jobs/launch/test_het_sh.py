"""slurm/het.sh, with scripts in place of Slurm and mpirun: what ranks of heterogeneous jobs start by."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import LIMIT_SECS, REPOSITORY

PROGRAMS = {
    "mpirun": "echo 'mpirun (Open MPI) 4.1.8'\n",
    "scontrol": 'case $3 in "n[1-2]") echo n1; echo n2 ;; *) echo "$3" ;; esac\n',
    "srun": 'printf "%s|" "$@"\n',
}
# What the job is then: a copy of het.sh, which is gone when mpirun begins, as the installation may be.
SCRIPT = """set -euo pipefail
fail() { echo "$1"; exit 2; }
command=(sh -c 'echo "rank $OMPI_COMM_WORLD_RANK: $OMP_NUM_THREADS $1"' - "a b")
source "$1"
rm "$1"
echo "$SLURM_NTASKS ranks on $(tr '\\n' ' ' <"$hostfile")"
for rank in 0 1 3 4; do OMPI_COMM_WORLD_RANK=$rank "${command[@]}"; done
for node in n2 n3 n4; do $OMPI_MCA_plm_rsh_agent $node 'orted -x "a b";' two || echo "code $?"; done
rm "$hostfile"
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "my tmp").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    return {
        **{"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "my tmp"), "SLURM_JOB_ID": "7"},
        **{"SLURM_HET_SIZE": "2", "SLURM_CPUS_PER_TASK_HET_GROUP_0": "8", "OMP_NUM_THREADS": "9"},
        **{"SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]", "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2(x2)"},
        **{"SLURM_JOB_NODELIST_HET_GROUP_1": "n3", "SLURM_TASKS_PER_NODE_HET_GROUP_1": "1"},
    }


def run(env: dict[str, str], tmp_path: Path) -> tuple[int, list[str]]:
    het = tmp_path / "het.sh"
    het.write_text((REPOSITORY / "slurm/het.sh").read_text())
    words = ["bash", "-c", SCRIPT, "-", str(het)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_SECS)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_ranks_have_the_threads_of_their_component_and_nodes_are_reached(env: dict[str, str], tmp_path: Path) -> None:
    code, told = run(env, tmp_path)
    assert (code, told[0]) == (0, "5 ranks on n1 slots=2 n2 slots=2 n3 slots=1 ")
    assert told[1:5] == ["rank 0: 8 a b", "rank 1: 8 a b", "rank 3: 8 a b", "rank 4: 1 a b"]
    step = '--nodes=1|--ntasks=1|--nodelist={node}|--overlap|--quiet|/bin/sh|-c|orted -x "a b"; two|'
    both = "".join(f"--het-group={group}|" + step.format(node=node) for group, node in ((0, "n2"), (1, "n3")))
    assert told[5:] == [f"{both}code 1", "het.sh: n4 belongs to no component of job 7"]
    assert not list((tmp_path / "my tmp").iterdir())


def test_what_is_not_understood(env: dict[str, str], tmp_path: Path) -> None:
    code, told = run({**env, "SLURM_TASKS_PER_NODE_HET_GROUP_1": "1x"}, tmp_path)
    assert (code, told) == (2, ["SLURM_TASKS_PER_NODE_HET_GROUP_1 is '1x', which is not understood"])
