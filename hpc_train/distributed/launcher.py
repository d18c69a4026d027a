"""What the launcher of the ranks says, as programs may ask it. Reads the environment; needs no MPI."""

from __future__ import annotations

import os

from hpc_train.arguments import checked_arguments
from hpc_train.distributed.launch_env import launch_place
from hpc_train.distributed.roles import CHIEF_RANK


@checked_arguments
def launched_ranks() -> int:
    """How many ranks the launcher started (mpirun -np, srun -n); 1 without one. Reads the environment; needs no MPI.

    All of them train where `run.strategy` is sync and no chief is dedicated; else take off the chief or the servers.
    """
    return launch_place(os.environ).size


@checked_arguments
def is_chief() -> bool:
    """Whether this process is rank 0, which writes and prints; True without a launcher. Local.

    Joins the other ranks as train_and_evaluate does, if that has not been done: the first call is collective.

    Raises:
        UserError: See train_and_evaluate: the launcher and MPI disagree about the number of ranks.
    """
    from hpc_train.distributed.startup import join_world

    return join_world().rank == CHIEF_RANK
