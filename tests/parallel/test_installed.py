"""The package as a wheel, away from the checkout: all that a user of it needs is in it."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import BIN, MODEL, REPOSITORY, make_job_in, run_program

SOURCES = ("hpc_train", "slurm", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since building leaves files behind."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        if (REPOSITORY / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, folder / "source" / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / name, folder / "source" / name)
    alone = ["--no-deps", "--no-index", "--no-build-isolation"]
    _pip(["wheel", "-q", *alone, "--wheel-dir", str(folder), "."], folder / "source")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, the packages it needs, and no way to the checkout."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=600)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path named here is not searched for more .pth files, as that of an editable install.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    _pip(["install", "-q", "--no-deps", "--no-index", "--target", str(packages), str(wheel)], folder)
    return folder / "bin/python"


def _pip(arguments: Sequence[str], cwd: Path) -> None:
    done = run_program([sys.executable, "-m", "pip", *arguments], cwd, 120, PIP_DISABLE_PIP_VERSION_CHECK="1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wheel_holds_all_that_is_not_python(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    held = {Path(name).name for name in names}

    package = [
        path for path in (REPOSITORY / "hpc_train").rglob("*") if path.is_file() and "__pycache__" not in str(path)
    ]
    assert {path.name for path in (*package, *(REPOSITORY / "slurm").iterdir())} <= held
    (commands,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert "hpc-train = hpc_train.__main__:main" in commands
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "examples", "slurm/"))]


def test_an_installed_package_submits_runs_and_reports(python: Path, tmp_path: Path) -> None:
    model = (
        MODEL
        + f"""
from pathlib import Path
import hpc_train
Path({str(tmp_path)!r}, "runs/mine/package.txt").write_text(hpc_train.__file__)
"""
    )
    resources = {"cores_per_rank": 1, "ranks_per_node": 1}
    job = make_job_in(tmp_path, model=model, run={"report": True}, train={"max_steps": 4}, resources=resources)
    path = os.pathsep.join([str(python.parent), str(BIN), os.environ["PATH"]])
    queue = {"HPC_TRAIN_BACKEND": "local", "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": "", "PATH": path}

    def run(*command: object) -> str:
        done = run_program([str(part) for part in command], tmp_path, 120, **queue)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run(python, "-c", "import hpc_train, sys; print(hpc_train.__file__, *sys.path, sep='\\n')").splitlines()
    assert Path(where[0]).is_relative_to(python.parent.parent), "not the checkout"
    assert str(REPOSITORY) not in where

    tool = (python, "-m", "hpc_train")
    assert "BASIC" in run(*tool, "tiers")
    run(*tool, "submit", job.file, "--name", "mine", "--wait")
    job_dir = tmp_path / "runs/mine"
    status = json.loads((job_dir / "status.json").read_text())
    assert (status["state"], status["step"]) == ("succeeded", 4)
    assert "SUCCEEDED" in run(*tool, "list")
    assert Path((job_dir / "package.txt").read_text()).is_relative_to(python.parent.parent), "the ranks' package, too"
    (job_dir / "report.html").unlink()
    run(*tool, "report", job_dir)
    assert "<svg" in (job_dir / "report.html").read_text()
