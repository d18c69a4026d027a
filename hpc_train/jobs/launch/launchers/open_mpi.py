"""The mpirun of Open MPI: its command line, and the folder that it needs while it runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpc_train.jobs.launch.hosts import Host, host_list

SESSION_VARIABLE = "OMPI_MCA_orte_local_tmpdir_base"
"""Where Open MPI 3 and 4 keep what an mpirun needs while it runs. In the folder that all those of a user share by
default, one that starts just when another ends can fail: the other takes the empty folder away (session_dir.c). For
mpirun alone: it gives its ranks `orte_tmpdir_base`, and they refuse to start with both."""
SESSION_VARIABLES = frozenset({SESSION_VARIABLE, "OMPI_MCA_orte_tmpdir_base"})
_CARRIED = (
    "HPC_TRAIN_",
    "HOROVOD_",
    "KERAS_",
    "TF_",
    "XLA_",
    "OMP_",
    "CUDA_",
    "NCCL_",
    "UCX_",
    "FI_",
    "PSM2_",
    "PYTHONPATH",
    "PATH",
    "LD_LIBRARY_PATH",
)
"""Beginnings of the variables that ranks on other hosts get, too."""


def command_of(
    mpirun: str,
    ranks: int,
    program: Sequence[str],
    as_root: bool,
    env: Mapping[str, str],
    output: Path | None = None,
    hosts: Sequence[Host] = (),
) -> tuple[list[str], dict[str, str]]:
    """See Launcher.command. Pure. On other `hosts` it sets those variables of `env` that _CARRIED names.

    `--oversubscribe` allows more ranks than cores; `--bind-to none` leaves cores to the ranks' threads. What each rank
    prints is kept in the folder `output` as well, if its path has no colon, at which it would be cut off.
    """
    settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if as_root else {}
    flags = ["--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
    if output is not None and ":" not in str(output):
        flags += ["--output-filename", str(output)]
    if hosts:
        flags += ["--host", host_list(hosts)]
        flags += [word for name in sorted(env) if name.startswith(_CARRIED) for word in ("-x", name)]
    command = [mpirun, *flags, "env", "-u", SESSION_VARIABLE, *program]
    return command, {name: value for name, value in settings.items() if name not in env}


@contextmanager
def session() -> Iterator[dict[str, str]]:
    """The variable with a new folder for what mpirun keeps while it runs; none where whoever started this gave one."""
    if SESSION_VARIABLES & os.environ.keys():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="ompi-", ignore_cleanup_errors=True) as own:
        yield {SESSION_VARIABLE: own}
