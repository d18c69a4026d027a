"""Fixtures: a Slurm cluster for the session, and a way to submit slurm/train.sh to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster, missing_requirements
from tests.slurm.jobs import job_environment, make_folder, not_here


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A running two-node cluster."""
    if (reason := missing_requirements()) is not None:
        not_here(reason)
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def submit(slurm_cluster: SlurmCluster) -> Callable[..., int]:
    """`submit(cwd, *args)` runs `sbatch ARGS` in `cwd` and returns the job's number.

    The job finds the hpc-train and mpirun of this Python, see job_environment; its output goes to `cwd/job.out`.
    """

    def run(cwd: Path, *args: str, anew: bool = False) -> int:
        env = job_environment(slurm_cluster, anew)
        return slurm_cluster.sbatch([f"--output={cwd}/job.out", *args], cwd=cwd, env=env)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as a user has it, with a space in its name: a model, shards, and job.yaml for 20 steps."""
    return make_folder(tmp_path / "my job")
