"""environment.json, and the table of ranks that a job prints when it starts."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.table import Table

PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "horovod", "mpi4py", "h5py", "numpy")
RANK_COLUMNS = ("rank", "role", "host", "cores", "device", "shards", "seed")


def describe_environment(ranks: list[dict[str, Any]], code_folder: Path) -> dict[str, Any]:
    """Versions, the commit of the user's code, and what each rank runs on. Holds no environment variables."""
    return {
        "hpc_train": importlib.import_module("hpc_train").__version__,
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "mpi": _mpi_library(),
        "platform": platform.platform(),
        "commit": _commit(code_folder),
        "ranks": ranks,
    }


def rank_table(ranks: list[dict[str, Any]]) -> Table:
    """One line a rank."""
    table = Table(box=None, pad_edge=False)
    for name in RANK_COLUMNS:
        table.add_column(name, justify="right" if name in ("rank", "cores") else "left", no_wrap=True)
    for rank in ranks:
        table.add_row(*(str(rank[name]) for name in RANK_COLUMNS))
    return table


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi_library() -> str | None:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi.Get_library_version().splitlines()[0].strip("\0 ") if mpi else None


def _commit(folder: Path) -> str | None:
    try:
        git = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return git.stdout.strip() if git.returncode == 0 else None
