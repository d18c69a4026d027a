"""Why a job does not fit what an image holds: its hpc_train, and its MPI."""

from __future__ import annotations

import os
import re
import subprocess

from hpc_train.jobs.containers.contents import Contents, first_line


def why_no_package(found: Contents, code: str, version: str, image: str) -> str | None:
    """Why ranks in an image do not run hpc_train `version` with the fingerprint `code`; None: they do. Pure."""
    again = "build it from this hpc_train (docs/containers.md), or submit with the one that it was built from"
    if found.package is None:
        return f"container: {image}: has no package hpc_train for its python3: {again}"
    if found.code is None:
        return f"container: {image}: its hpc_train cannot be used ({found.problem or 'unknown'}): {again}"
    if found.code != code:
        return (
            f"container: {image}: has hpc_train {found.version} ({found.code[:8]}), and the job is of {version} "
            f"({code[:8]}): {again}"
        )
    if found.mpi is None:
        return f"container: {image}: its mpi4py has no MPI ({found.without_mpi}): install one, and mpi4py on it"
    return None


def why_mpi_does_not_fit(mpirun: str, mpi: str, image: str) -> str | None:
    """Why ranks with the library `mpi` cannot be started by a `mpirun`, both as they say; None: they can. Pure.

    Open MPI starts that of the same major version (its PMIx is the same, or speaks the older one's language). MPICH
    and what is built on it (Intel MPI, MVAPICH, Cray MPICH) are started by each other's Hydra.
    """
    outside, inside = _family(mpirun), _family(mpi)
    if None in (outside, inside) or outside == inside:
        return None
    return (
        f"container: {image}: its MPI is {first_line(mpi)}, which mpirun here ({first_line(mpirun)}) cannot start: "
        "load a fitting MPI (`modules`), build the image with one, or take launcher: srun"
    )


def _family(text: str) -> str | None:
    if match := re.search(r"Open MPI\)?\s+v?(\d+)\.", text):
        return f"Open MPI {match[1]}"
    if re.search(r"HYDRA|MPICH|MVAPICH|Intel\(R\) MPI", text, re.IGNORECASE):
        return "MPICH"
    return None


def mpirun_says(path: str) -> str:
    """What mpirun says of its version; nothing where it does not run."""
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run([path, "--version"], stdin=quiet, capture_output=True, timeout=60, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
