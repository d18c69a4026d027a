"""The mpirun that is here, whichever MPI it is of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.jobs.launch.hosts import Host
from hpc_train.jobs.launch.launchers import hydra, open_mpi
from hpc_train.jobs.launch.launchers.base import Launcher
from hpc_train.jobs.launch.mpirun_output import MpirunOutput

VERSION_SECS = 60.0
"""How long mpirun may take to tell its version (it needs 0.05 seconds)."""


def mpirun_command(
    mpirun: str,
    version_text: str,
    ranks: int,
    program: Sequence[str],
    as_root: bool,
    env: Mapping[str, str],
    output: Path | None = None,
    hosts: Sequence[Host] = (),
) -> tuple[list[str], dict[str, str]]:
    """See Launcher.command; of the MPI that `mpirun --version` tells. Pure."""
    if "Open MPI" not in version_text:
        return hydra.command_of(mpirun, ranks, program, hosts), {}
    return open_mpi.command_of(mpirun, ranks, program, as_root, env, output, hosts)


class Mpirun(Launcher):
    """The mpirun beside this Python, or on PATH. It is asked for its version, while the caller goes on.

    Raises:
        UserError: There is none.
    """

    name = "mpirun"

    def __init__(self) -> None:
        found = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        if found is None:
            way_on = ", or take --launcher srun" if "SLURM_JOB_ID" in os.environ and shutil.which("srun") else ""
            raise UserError(f"mpirun is not on PATH; load an MPI module or run `make setup`{way_on}")
        self.path = found
        quiet = subprocess.DEVNULL
        self._asked = subprocess.Popen([found, "--version"], stdin=quiet, stdout=subprocess.PIPE, stderr=quiet)

    @cached_property
    def version(self) -> str:
        """What it says of itself, which is waited for."""
        return self._asked.communicate(timeout=VERSION_SECS)[0].decode(errors="replace")

    def command(
        self,
        ranks: int,
        program: Sequence[str],
        env: Mapping[str, str],
        output: Path | None = None,
        hosts: Sequence[Host] = (),
    ) -> tuple[list[str], dict[str, str]]:
        return mpirun_command(self.path, self.version, ranks, program, os.geteuid() == 0, env, output, hosts)

    @staticmethod
    def output() -> MpirunOutput:
        return MpirunOutput()

    @staticmethod
    def session() -> AbstractContextManager[Mapping[str, str]]:
        return open_mpi.session()
