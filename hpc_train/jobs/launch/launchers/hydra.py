"""The mpirun of MPICH, Intel MPI and others with Hydra: its command line."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_train.jobs.launch.hosts import Host, host_list


def command_of(mpirun: str, ranks: int, program: Sequence[str], hosts: Sequence[Host] = ()) -> list[str]:
    """The command that runs `program` on `ranks` ranks. On other `hosts` it sets all variables. Pure."""
    where = ["-hosts", host_list(hosts)] if hosts else []
    return [mpirun, "-bind-to", "none", *where, "-np", str(ranks), *program]
