"""Tasks of srun that MPI cannot make ranks of are known before MPI starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.distributed.srun_tasks import lack_pmix, open_mpi_components, why_not_ranks

OPEN_MPI = "Open MPI v4.1.8, package: Open MPI root@vm Distribution, ident: 4.1.8, repo rev: v4.1.8\0"


@pytest.mark.parametrize(
    ("env", "lack"),
    [
        ({"SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "0"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"}, False),
        ({"SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "4"}, False),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_NTASKS": "2"}, False),
    ],
)
def test_which_tasks_may_not_be_ranks(env: dict[str, str], lack: bool) -> None:
    assert lack_pmix(env) == lack


def test_open_mpi_wants_pmix_unless_it_has_the_pmi_of_slurm() -> None:
    why = why_not_ranks(OPEN_MPI, ["mca_pmix_pmix3x.so"])
    assert why is not None and "Open MPI v4.1.8" in why
    for way in ("srun --mpi=list", "SLURM_MPI_TYPE", "launcher: mpirun"):
        assert way in why
    assert why_not_ranks(OPEN_MPI, ["mca_pmix_s2.so"]) is None
    assert why_not_ranks("MPICH Version: 4.2.1", []) is None
    assert why_not_ranks(OPEN_MPI, None) is None, "what is not known is tried"
    assert why_not_ranks(OPEN_MPI, []) is not None


def test_components_are_beside_the_library(tmp_path: Path) -> None:
    (tmp_path / "openmpi").mkdir()
    (tmp_path / "openmpi/mca_pmix_s1.so").touch()
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 0 08:01 1 {tmp_path}/libmpi.so.40.30.8\n7f02-7f03 rw-p 0 00:00 0\n")
    assert open_mpi_components(maps) == ["mca_pmix_s1.so"]
    (tmp_path / "openmpi").rename(tmp_path / "openmpi3")
    assert open_mpi_components(maps) == ["mca_pmix_s1.so"], "as Debian has it"
    (tmp_path / "openmpi3/mca_pmix_s1.so").unlink()
    assert open_mpi_components(maps) is None
    assert open_mpi_components(maps, str(tmp_path)) == [], "of this environment, which has them built in"
