from __future__ import annotations

from collections import Counter

import pytest

from hpc_train.distributed.launch_env import (
    MESSAGE_BYTES,
    LaunchPlace,
    fair_cores,
    launch_place,
    settings_before_mpi,
    visible_device,
)

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
        ({}, LaunchPlace(False, 1, 0, 1)),
        (
            {"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"},
            LaunchPlace(False, 1, 0, 1),
        ),  # sbatch's shell
        (OPEN_MPI, LaunchPlace(True, 8, 3, 4)),
        (HYDRA, LaunchPlace(True, 8, 1, 4)),
        ({**SRUN, "SLURM_NODEID": "1"}, LaunchPlace(True, 5, 1, 2)),
        ({**SRUN, "SLURM_NODEID": "2", "SLURM_LOCALID": "0"}, LaunchPlace(True, 5, 0, 1)),
    ],
)
def test_what_launchers_say(env: dict[str, str], place: LaunchPlace) -> None:
    assert launch_place(env) == place


@pytest.mark.parametrize(
    ("masks", "cores"),
    [
        ([[0, 1, 2, 3]], [4]),
        ([[0, 1, 2, 3]] * 2, [2, 2]),  # not bound: they share what they see, in a cpuset of a larger machine too
        ([[0], [1]], [1, 1]),  # bound to a core each
        ([[0, 1], [2, 3]], [2, 2]),  # bound to a socket each
        ([[0, 1, 2, 3, 4]] * 3, [1, 1, 1]),
        ([[0, 1]] * 4, [1, 1, 1, 1]),  # more ranks than cores
        ([[0, 1, 2, 3], [0, 1]], [3, 1]),
    ],
)
def test_cores_are_shared_out_unless_the_launcher_bound_them(masks: list[list[int]], cores: list[int]) -> None:
    users = Counter(core for mask in masks for core in mask)
    assert [fair_cores(users, mask) for mask in masks] == cores


def test_ranks_yield_unless_threads_leave_cores_over() -> None:
    name, two = "OMPI_MCA_mpi_yield_when_idle", LaunchPlace(True, 2, 0, 2)
    assert name in settings_before_mpi({}, 2, two)
    assert name in settings_before_mpi({}, 64, two), "every core gets a thread, and Horovod's come on top"
    assert name in settings_before_mpi({"OMP_NUM_THREADS": "1"}, 2, two)
    assert name not in settings_before_mpi({"OMP_NUM_THREADS": "1"}, 4, two)
    alone = settings_before_mpi({}, 2, LaunchPlace(False, 1, 0, 1))
    assert alone == {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}


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
    assert visible_device(env, devices, LaunchPlace(True, 4, local_rank, 4)) == visible


def test_large_tensors_are_not_copied_where_an_allreduce_is_cheap() -> None:
    name = "HOROVOD_FUSION_THRESHOLD"
    one_node = LaunchPlace(launched=True, size=2, local_rank=0, local_size=2)
    assert name in settings_before_mpi({}, 2, one_node)
    assert name not in settings_before_mpi({}, 2, one_node, gpus=2)
    assert name not in settings_before_mpi({}, 2, LaunchPlace(launched=True, size=4, local_rank=0, local_size=2))
    assert name not in settings_before_mpi({}, 2, LaunchPlace(False, 1, 0, 1))


def test_ranks_without_room_in_shared_memory_are_not_to_try() -> None:
    env, two, room = {"OMPI_COMM_WORLD_SIZE": "2"}, LaunchPlace(True, 2, 0, 2), MESSAGE_BYTES
    assert settings_before_mpi(env, 2, two, 0, room - 1)["OMPI_MCA_btl"] == "^vader"
    for has_room in (
        settings_before_mpi(env, 2, two, 0, room),
        settings_before_mpi(env, 2, two, 0, None),
        settings_before_mpi({}, 2, two, 0, 0),  # another MPI
        settings_before_mpi({**env, "OMPI_MCA_btl": "self,tcp"}, 2, two, 0, 0),  # the user's choice
        settings_before_mpi(env, 2, LaunchPlace(True, 2, 0, 1), 0, 0),  # one rank a node
    ):
        assert has_room.get("OMPI_MCA_btl") != "^vader"


def test_ranks_of_one_node_do_not_listen_on_the_network() -> None:
    assert settings_before_mpi({}, 2, LaunchPlace(True, 2, 0, 2))["OMPI_MCA_btl"] == "^tcp"
    assert "OMPI_MCA_btl" not in settings_before_mpi({}, 2, LaunchPlace(True, 4, 0, 2))
