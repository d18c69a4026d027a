"""srun, as a launcher inside of a Slurm allocation: its command line, and how its ranks find each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.jobs.launch.hosts import Host
from hpc_train.jobs.launch.launchers.base import Launcher
from hpc_train.jobs.launch.srun_output import SrunOutput
from hpc_train.text import visible

ASK_SECS = 20.0
MPI_TYPE_VARIABLE = "SLURM_MPI_TYPE"
"""srun reads in it by what ranks find each other, where no option says so."""
PMIX_KINDS = ("pmix", "pmix_v5", "pmix_v4", "pmix_v3", "pmix_v2", "cray_shasta")
"""In the order in which they are taken, as slurm/ranks.sh does."""


def pmi_option(kinds: Collection[str], is_open_mpi: bool) -> str:
    """The option by which srun tells ranks of each other, given what `srun --mpi=list` names. Pure.

    Raises:
        UserError: There is none that the MPI knows.
    """
    kind = next((kind for kind in PMIX_KINDS if kind in kinds), None)
    if kind is None and "pmi2" in kinds and not is_open_mpi:
        kind = "pmi2"
    if kind is None:
        raise UserError(
            "srun here has no pmix, by which it would start this MPI ('srun --mpi=list'): take --launcher mpirun"
        )
    return f"--mpi={kind}"


class Srun(Launcher):
    """The srun on PATH, in the allocation that this process is in.

    Raises:
        UserError: There is none, this process is in no allocation, or srun cannot start the MPI.
    """

    name = "srun"
    draws = False

    def __init__(self) -> None:
        if "SLURM_JOB_ID" not in os.environ:
            raise UserError(
                "--launcher srun needs a Slurm allocation, and SLURM_JOB_ID is not set: start it as in salloc "
                "--ntasks=2 hpc-train launch --launcher srun -n 2 job.yaml, or take --launcher mpirun"
            )
        if os.environ.get("SLURM_HET_SIZE"):
            raise UserError("--launcher srun is not for heterogeneous jobs: take --launcher mpirun")
        if shutil.which("srun") is None:
            raise UserError("srun is not on PATH; load Slurm's programs, or take --launcher mpirun")
        self._pmi = _pmi()

    def command(
        self,
        ranks: int,
        program: Sequence[str],
        env: Mapping[str, str],
        output: Path | None = None,
        hosts: Sequence[Host] = (),
    ) -> tuple[list[str], dict[str, str]]:
        assert not hosts, "which are mpirun's"
        flags = [f"--ntasks={ranks}", "--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL", "--input=none"]
        if cores := env.get("SLURM_CPUS_PER_TASK"):  # srun reads it no more; with the option it gives no others
            flags.append(f"--cpus-per-task={cores}")
        return ["srun", *self._pmi, *flags, *program], {}

    @staticmethod
    def output() -> SrunOutput:
        return SrunOutput()


def _pmi() -> tuple[str, ...]:
    """The option; none where the user or the site has chosen already."""
    if os.environ.get(MPI_TYPE_VARIABLE):
        return ()
    default = re.search(r"(?m)^MpiDefault\s*=\s*(\S+)", _said(["scontrol", "show", "config"]))
    if default is not None and default[1] not in ("none", "(null)"):
        return ()
    version = _said(["mpirun", "--version"])
    kinds = _said(["srun", "--mpi=list"], is_needed=True)
    return (pmi_option(set(re.findall(r"\w+", kinds)), "Open MPI" in version),)


def _said(command: Sequence[str], is_needed: bool = False) -> str:
    """What a program prints; nothing where it fails, or a UserError where it is needed."""
    why = f"takes longer than {ASK_SECS:.0f} s"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECS, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return done.stdout + done.stderr
        why = visible(done.stderr.strip().partition("\n")[0]) or f"exit code {done.returncode}"
    except OSError as error:
        why = str(error.strerror)
    except subprocess.SubprocessError:
        pass
    if is_needed:
        raise UserError(f"{' '.join(command)} fails: {why}; mend that, or take --launcher mpirun")
    return ""
