from __future__ import annotations

import pytest

from hpc_train.cluster.launch_env import LaunchPlace, cores_of_rank, fast_settings, launch_place, visible_device

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
}  # fmt: skip
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "1"}
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_LOCALID": "1",
    "PMIX_RANK": "3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, LaunchPlace(False, 0, 1)),
        ({"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, LaunchPlace(False, 0, 1)),  # sbatch's shell
        (OPEN_MPI, LaunchPlace(True, 3, 4)),
        (HYDRA, LaunchPlace(True, 1, 4)),
        ({**SRUN, "SLURM_NODEID": "1"}, LaunchPlace(True, 1, 2)),
        ({**SRUN, "SLURM_NODEID": "2", "SLURM_LOCALID": "0"}, LaunchPlace(True, 0, 1)),
    ],
)
def test_what_launchers_say(env: dict[str, str], place: LaunchPlace) -> None:
    assert launch_place(env) == place


@pytest.mark.parametrize(
    ("allowed", "machine", "local_size", "cores"),
    [(8, 8, 1, 8), (8, 8, 4, 2), (1, 8, 4, 1), (2, 8, 4, 2), (2, 2, 4, 1), (6, 8, 4, 1), (3, 64, 2, 3)],
)
def test_cores_are_shared_out_unless_the_launcher_bound_them(
    allowed: int, machine: int, local_size: int, cores: int
) -> None:
    assert cores_of_rank(allowed, machine, local_size) == cores


def test_ranks_yield_only_where_they_fill_the_machine() -> None:
    name = "OMPI_MCA_mpi_yield_when_idle"
    assert name in fast_settings(1, 2, LaunchPlace(True, 0, 2))
    assert name not in fast_settings(1, 8, LaunchPlace(True, 0, 2))
    alone = fast_settings(2, 2, LaunchPlace(False, 0, 1))
    assert alone == {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "2"}


@pytest.mark.parametrize(
    ("env", "devices", "local_rank", "visible"),
    [
        ({}, 0, 1, None),
        ({}, 4, 2, "2"),
        ({}, 2, 3, "1"),
        ({"CUDA_VISIBLE_DEVICES": "5,7"}, 8, 1, "7"),
        ({"CUDA_VISIBLE_DEVICES": "5"}, 8, 1, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, 1, None),
    ],
)
def test_one_gpu_a_rank(env: dict[str, str], devices: int, local_rank: int, visible: str | None) -> None:
    assert visible_device(env, devices, LaunchPlace(True, local_rank, 4)) == visible
