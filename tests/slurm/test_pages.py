"""What the pages of the documentation have people type for Slurm runs on one, and each job ends well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import Reader, blocks_of, pages
from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import job_environment
from tests.support import REPOSITORY


def has_jobs(page: Path) -> bool:
    return any(block.typed(queue=True) for block in blocks_of(page) if block.language == "bash")


@pytest.fixture(scope="module")
def trained(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the README's job has been trained, as runs/mine."""
    return Reader.trained(tmp_path_factory.mktemp("trained") / "reader")


@pytest.mark.parametrize("page", [*filter(has_jobs, pages())], ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_the_jobs_of_a_page_end_well(page: Path, slurm_cluster: SlurmCluster, tmp_path: Path, trained: Path) -> None:
    env = {**job_environment(slurm_cluster), "SLURM_CONF": slurm_cluster.env["SLURM_CONF"]}
    env["OMPI_MCA_btl"] = "self,tcp"  # the shared memory of two nodes with one name would be the same
    reader = Reader(tmp_path / "reader", trained, **env)
    for block in blocks_of(page):
        if block.file is not None:
            reader.write(block.file, block.text)
        if block.language != "bash" or not (commands := block.typed(queue=True)):
            continue
        if block.before:
            reader.type(block.before)
        for command, _ in commands:
            number = reader.type([command]).split()[-1]
            result = slurm_cluster.wait(number)
            assert (result.state, result.exit_code) == ("COMPLETED", 0), (command, reader.outputs())
