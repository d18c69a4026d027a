"""Starts the ranks of a job on this machine with mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from hpc_train.errors import UserError


def mpirun_command(
    mpirun: str, version_text: str, ranks: int, program: list[str], as_root: bool, env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command that runs `program` on `ranks` ranks, and the variables to set for it. Pure.

    `--oversubscribe` allows more ranks than cores; `--bind-to none` leaves cores to the ranks' threads; `--quiet`
    keeps mpirun's own words about a failure away from the job's.
    """
    settings: dict[str, str] = {}
    if "Open MPI" not in version_text:
        return [mpirun, "-bind-to", "none", "-np", str(ranks), *program], settings
    if as_root:
        settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        settings = {name: value for name, value in settings.items() if name not in env}
    flags = ["--oversubscribe", "--bind-to", "none", "--quiet", "-np", str(ranks)]
    return [mpirun, *flags, *program], settings


def launch(ranks: int, job_file: Path, job_dir: Path | None) -> NoReturn:
    """Replaces this process by mpirun with `ranks` ranks of `hpc-train train`.

    Raises:
        UserError: There is no mpirun.
    """
    mpirun = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if mpirun is None:
        raise UserError("mpirun is not on PATH; load an MPI module or run `make setup`")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60).stdout
    program = [sys.executable, "-m", "hpc_train", "train", str(job_file)]
    if job_dir is not None:
        program += ["--job-dir", str(job_dir)]
    command, settings = mpirun_command(mpirun, version, ranks, program, os.geteuid() == 0, os.environ)
    os.environ.setdefault("HPC_TRAIN_PROGRESS", "bar" if sys.stdout.isatty() else "lines")
    os.environ.update(settings)
    sys.stdout.flush()
    os.execv(command[0], command)
