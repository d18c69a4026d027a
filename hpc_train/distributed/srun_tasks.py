"""Tasks of srun that MPI cannot make ranks of, since srun has not told them of each other in a way that it knows."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from hpc_train.files import read_bytes

MAX_MAPS_BYTES = 16 << 20
_MPI = re.compile(r"/libmpi\.so[^/]*$")
WAYS_ON = (
    "have srun start them in a way that it does (one of `srun --mpi=list`) by SLURM_MPI_TYPE=pmix or srun --mpi=pmix, "
    "or start the ranks with mpirun (launcher: mpirun, hpc-train launch --launcher mpirun)"
)


def lack_pmix(env: Mapping[str, str]) -> bool:
    """Whether this process is one of several tasks of srun, and has no PMIx, nor another launcher. Pure."""
    several = env.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    return several and not any(name.startswith(("PMIX_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_")) for name in env)


def why_not_ranks(library: str, components: Collection[str] | None) -> str | None:
    """Why tasks that lack PMIx do not become ranks of this MPI; None where they may. Pure.

    Args:
        library: What MPI_Get_library_version says. components: As open_mpi_components finds them. Open MPI takes
            Slurm's own PMI where it was built with one of it; MPICH and its relatives do without PMIx.
    """
    if "Open MPI" not in library or components is None:
        return None
    if any(name.startswith(("mca_pmix_s1.", "mca_pmix_s2.")) for name in components):
        return None
    mpi = " ".join(library.replace(",", " ").split()[:3])
    return f"srun has not started its tasks in a way by which {mpi} makes them ranks (PMIx): {WAYS_ON}"


def open_mpi_components(maps: Path = Path("/proc/self/maps"), prefix: str = sys.prefix) -> list[str] | None:
    """The components that lie beside the MPI library which this process has loaded; None: not known. Local.

    That of this environment's own wheel has them all built in, and no PMI of Slurm's among them.
    """
    lines = read_bytes(maps, MAX_MAPS_BYTES).decode(errors="surrogateescape").splitlines()
    paths = (fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6)
    libraries = {Path(path) for path in paths if _MPI.search(path)}
    found = [file.name for library in libraries for file in library.parent.glob("openmpi*/mca_*")]
    return found if found or any(library.is_relative_to(prefix) for library in libraries) else None
