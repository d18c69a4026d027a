"""Ranks in Charliecloud's containers on a real Slurm of two nodes: weights, endings, and what does not fit is told."""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.back_ends import BackEnd
from tests.slurm.cluster import SlurmCluster
from tests.slurm.images import make_image
from tests.slurm.jobs import TRAIN_SH, ended_as, job_environment, log, make_folder, not_here, status, write_job
from tests.slurm.test_launcher import ONE_MACHINE, end, ranks_of, start
from tests.slurm.test_lost_nodes import assert_same_weights
from tests.support import wait_for

OTHER_MPIRUN = "#!/bin/sh\necho 'HYDRA build details:'\necho '    Version: 4.1.2'\n"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("ch-run") is None:
        not_here("ch-run is not on PATH: install charliecloud-runtime")
    return make_image(tmp_path_factory.mktemp("image") / "hpc_train")


@pytest.fixture
def slurm(tmp_path: Path, slurm_cluster: SlurmCluster) -> Iterator[BackEnd]:
    with BackEnd(tmp_path, slurm_cluster) as found:
        found.env |= {**job_environment(slurm_cluster, anew=True), **ONE_MACHINE}
        yield found


def test_ranks_in_containers_train_the_same_weights(
    slurm_cluster: SlurmCluster, slurm: BackEnd, image: Path, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "model")
    env = "resources.environment={OMPI_MCA_btl: 'self,tcp', OMPI_MCA_osc: pt2pt}"
    two_nodes = ("--set=resources.nodes=2", "--set=resources.ranks_per_node=1", f"--set={env}")
    ways = {
        "bare": (),
        "contained": (f"--set=resources.container={image}",),
        "by_srun": (f"--set=resources.container={image}", "--set=resources.launcher=srun"),
    }
    for name, settings in ways.items():
        job = slurm.submit_file(folder / "job.yaml", name, "--set=resources.tier=CUSTOM", *two_nodes, *settings)
        assert job.end() == ("SUCCEEDED", 0), job.log()
        assert (f"the ranks run in {image} (charliecloud; Python 3." in job.log()) == (name != "bare"), job.log()
        assert_same_weights(job.job_dir, slurm.root / "bare", 20)
    noted = (slurm.root / "contained/environment.json").read_text()
    assert f'"HPC_TRAIN_CONTAINER": "{image}"' in noted
    assert "PYTHONPATH" not in noted
