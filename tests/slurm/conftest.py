"""Fixtures: a Slurm cluster for the session, and a way to submit slurm/train.sh to it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def _load(path: Path) -> ModuleType:
    """Imports a file by its path, under a name that no other test folder can have."""
    name = f"_{path.parent.name}_tests_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _not_here(reason: str) -> NoReturn:
    """Skips; fails in CI, where everything is installed and a skip would hide that these tests never ran."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Any]:
    """A running two-node cluster (`SlurmCluster` in cluster.py)."""
    module = _load(Path(__file__).with_name("cluster.py"))
    if (reason := module.missing_requirements()) is not None:
        _not_here(reason)
    with module.SlurmCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def submit(slurm_cluster: Any) -> Callable[..., int]:
    """`submit(cwd, *args)` runs `sbatch ARGS` in `cwd` and returns the job's number.

    The job finds the hpc-train and mpirun of this Python; its output goes to `cwd/job.out`.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), slurm_cluster.env["PATH"]])
    for program in ("hpc-train", "mpirun"):
        if shutil.which(program, path=path) is None:
            _not_here(f"{program} is not beside {sys.executable}: run make setup first")

    # mpirun prints which rank is on which node. The loopback interface is for machines that have no other.
    env = {"PATH": path, "OMPI_MCA_rmaps_base_display_map": "1", "OMPI_MCA_btl_tcp_if_include": "lo"}

    def run(cwd: Path, *args: str) -> int:
        return int(slurm_cluster.sbatch([f"--output={cwd}/job.out", *args], cwd=cwd, env=env))

    return run
