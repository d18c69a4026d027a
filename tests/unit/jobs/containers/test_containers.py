"""What runs an image, what of the node is seen in it, and why a job does not fit it; with a stand-in for a runtime."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_train.config.container import Container
from hpc_train.config.job import load_job
from hpc_train.config.resources import Resources
from hpc_train.errors import UserError
from hpc_train.jobs.containers.apptainer import Apptainer
from hpc_train.jobs.containers.base import Inside
from hpc_train.jobs.containers.charliecloud import Charliecloud
from hpc_train.jobs.containers.compatibility import why_mpi_does_not_fit, why_no_package
from hpc_train.jobs.containers.contents import Contents
from hpc_train.jobs.containers.image import runtime_of, with_full_path
from hpc_train.jobs.containers.job import container_from, paths_in, paths_of
from hpc_train.jobs.containers.start import ContainedJob, contained_command
from hpc_train.jobs.record.installation import this_installation

STAND_IN = """\
#!/bin/sh
# Takes apptainer's options, and runs the command here.
[ "$1" = exec ] || exit 64
shift
while :; do
    case $1 in
        --nv | --bind=/*) shift ;;
        *.sif) break ;;
        *) echo "unknown option $1" >&2; exit 64 ;;
    esac
done
shift
exec "$@"
"""
ODD = json.dumps({"python": "3.1", "folder": "/a\0", "sees": [], "writes": True})
OPEN_MPI = "Open MPI v4.1.8, package: Open MPI x Distribution, ident: 4.1.8"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A .sif file, with a stand-in for Apptainer on PATH, which has python3 as here."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apptainer").write_text(STAND_IN)
    (programs / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "one.sif").touch()
    return tmp_path / "one.sif"


@pytest.fixture
def job(image: Path, tmp_path: Path) -> ContainedJob:
    (tmp_path / "job/code").mkdir(parents=True)
    here = this_installation()
    return ContainedJob(
        container=Container(image=str(image)),
        job_dir=tmp_path / "job",
        folder=tmp_path / "job/code",
        code=here.fingerprint,
        version=here.version,
        mpirun=shutil.which("mpirun"),
    )


def test_commands_are_those_of_the_runtimes() -> None:
    inside = Inside("/job/code", ("/data", "/a:/b"), {"A": "1"}, ("B",), ("PYTHONPATH",), True)
    words = Charliecloud().words("/usr/bin/ch-run", "/image", inside)
    assert words[0] == "env" and "TMPDIR=/tmp" in words and words[1].startswith("USER=")
    assert words[words.index("/usr/bin/ch-run") :] == [
        *("/usr/bin/ch-run", "--unset-env=PYTHONPATH", "--env-no-expand"),
        "--set-env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *("--set-env=A=1", "--bind=/data", "--bind=/a:/b", "--cd=/job/code"),
        *("/image", "--"),
    ]
    variables = Inside("/", ("/data",), {"A": "1", "LD_LIBRARY_PATH": "/x"}, (), ("PYTHONPATH",), True)
    assert Apptainer().words("/opt/bin/singularity", "/i.sif", variables) == [
        *("env", "-u", "PYTHONPATH", "A=1", "SINGULARITYENV_LD_LIBRARY_PATH=/x"),
        *("/opt/bin/singularity", "exec", "--nv", "--bind=/data", "/i.sif"),
    ]


@dataclass
class Held:
    """An image with these paths, and this file of variables."""

    there: dict[str, str]
    variables: str = ""

    def kinds(self, paths: Sequence[str]) -> list[str]:
        return [self.there.get(path, "none") for path in paths]

    def text(self, path: str) -> str:
        assert self.there[path] == "file"
        return self.variables


def test_folders_are_mounted_where_an_image_has_empty_ones() -> None:
    there = {"/scratch": "empty", "/var": "full", "/var/tmp": "empty", "/opt": "full", "/ch/environment": "file"}
    image = Held(there, "PATH=/opt/bin\nLANG=C\nA=of the image\nPYTHONPATH=/p\nno line\nB=\x1b\n")
    paths = ["/scratch/me/runs/one", "/scratch/data", "/var/tmp/x", "/opt/data", "/lustre/x", "/opt"]
    job = {"A": "of the job", "PATH": "/node", "PYTHONPATH": "/node"}
    inside = Charliecloud().fitted(Inside(binds=("/own",), variables={"C": "1"}), paths[:3], paths[3:], image, job)
    assert inside.binds == ("/own", "/scratch", "/var/tmp")
    assert inside.variables == {"PATH": "/opt/bin", "LANG": "C", "PYTHONPATH": "/p", "C": "1"}, "A is the job's"

    wanted = ["/c/d", "/opt", "/var/tmp", "/c/d/e"]
    made = Apptainer().fitted(Inside(binds=("/own",)), ["/a/b", "/a", "/opt"], wanted[:1] + wanted[2:], image, {})
    assert made.binds == ("/own", "/a", "/opt", "/c/d", "/var/tmp")
    assert Apptainer().fitted(Inside(), [], ["/opt"], image, {}).binds == (), "the image's own is what ranks want"


def test_variables_of_the_job_win_over_those_of_an_image(image: Path) -> None:
    words = Apptainer().words("sh", str(image), Inside(winning=("A", "B"), unset=()))
    program = words[words.index("-") + 3 :]
    assert program == ["sh", "exec", str(image)]
    told = [*words[: words.index("-") + 3], "env"]
    done = subprocess.run(told, env={"PATH": os.environ["PATH"], "A": "x 'y\" $z"}, capture_output=True, text=True)
    assert "SHENV_A=x 'y\" $z\n" in done.stdout and "SHENV_B" not in done.stdout, done


def test_images_are_known_by_their_names(tmp_path: Path) -> None:
    for name in ("a.sif", "a.sqfs", "a.tar"):
        (tmp_path / name).touch()
    found = [runtime_of(Container(image=str(tmp_path / name))).name for name in ("a.sif", ".")]
    assert found == ["apptainer", "charliecloud"]
    with pytest.raises(UserError, match="ch-run would keep the signals that ask ranks to save: unpack it"):
        runtime_of(Container(image=str(tmp_path / "a.sqfs")))
    assert runtime_of(Container(image=str(tmp_path), runtime="apptainer")).name == "apptainer"
    assert with_full_path(Container(image="../x.sif"), Path("/a/b")).image == "/a/x.sif"
    with pytest.raises(UserError, match=r"a\.tar: is no image that is known by its name; allowed: a folder"):
        runtime_of(Container(image=str(tmp_path / "a.tar")))
    with pytest.raises(UserError, match="there is no image"):
        runtime_of(Container(image=str(tmp_path / "b.sif")))
    with pytest.raises(UserError, match="which no container's runtime takes in paths"):
        with_full_path(Container(image="x.sif"), Path("/a:b"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"image": "a:b.sif"}, "without : , quotes"),
        ({"image": ""}, "allowed: a path"),
        ({"image": "a.sif", "binds": ["data"]}, "with absolute paths"),
        ({"image": "a.sif", "binds": ["/a:/b:ro"]}, "allowed: /folder, or /folder:/in/the/container"),
        ({"image": "a.sif", "runtime": "docker"}, "runtime"),
        ({"image": "a.sif", "bind": ["/data"]}, "bind"),
        ({}, "image"),
    ],
)
def test_mistakes_in_the_job_file_are_told(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Resources(tier="CUSTOM", container=value)  # type: ignore[arg-type]


def test_a_container_has_all_that_ranks_import() -> None:
    with pytest.raises(ValueError, match=r"`pack` is not for a job in a container.*`requirements` is not for a job in"):
        Resources(tier="CUSTOM", container="a.sif", pack="auto", requirements="r.txt")  # type: ignore[arg-type]


def test_ranks_begin_in_the_container_with_what_they_need(
    job: ContainedJob, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    words = contained_command(job, {"OMPI_MCA_smsc": "^x"}, said.append)
    assert words[-1] == str(image) and f"HPC_TRAIN_CONTAINER={image}" in words
    assert "OMPI_MCA_btl_vader_single_copy_mechanism=none" in words and "OMPI_MCA_smsc=^cma" not in words
    assert said[-1].startswith(f"the ranks run in {image} (apptainer; Python 3."), said


def test_what_does_not_fit_is_told(
    job: ContainedJob, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mpirun").write_text("#!/bin/sh\necho 'HYDRA build details:'\necho '    Version: 4.1.2'\n")
    (other / "mpirun").chmod(0o755)
    with pytest.raises(UserError, match=r"which mpirun here \(HYDRA build details:\) cannot start"):
        contained_command(replace(job, mpirun=str(other / "mpirun")), {}, print)
    contained_command(replace(job, mpirun=None), {}, print)
    with pytest.raises(UserError, match=r"has hpc_train .* and the job is of 9\.9 \(00000000\)"):
        contained_command(replace(job, code="0" * 32, version="9.9"), {}, print)
    said: list[str] = []
    (tmp_path / "seen").mkdir()
    contained_command(replace(job, wants=(str(tmp_path / "seen"), "/no/such")), {}, said.append)
    assert not any("not seen" in line for line in said), "what the node has not is the program's own affair"
    (image.parent / "programs/apptainer").unlink()
    monkeypatch.setenv("PATH", str(image.parent / "programs"))
    with pytest.raises(UserError, match=r"apptainer is not on PATH here \(apptainer or singularity\)"):
        contained_command(job, {}, print)


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done", "it prints without end"),
        ("echo wrong >&2; exit 3", "its python3 cannot be run: wrong"),
        ("echo 'hpc_train: {'", "its python3 does not say what it has"),
        (f"echo 'hpc_train: {ODD}'", "its python3 does not say what it has"),
    ],
)
def test_images_may_say_anything(
    job: ContainedJob, image: Path, monkeypatch: pytest.MonkeyPatch, python: str, said: str
) -> None:
    (image.parent / "programs/python3").write_text(f"#!/bin/sh\n{python}\n")
    (image.parent / "programs/python3").chmod(0o755)
    with pytest.raises(UserError, match=said):
        contained_command(job, {}, print)


@pytest.mark.parametrize(
    ("mpirun", "mpi", "fits"),
    [
        ("mpirun (Open MPI) 4.1.6\n\nReport bugs", OPEN_MPI, True),
        ("mpirun (Open MPI) 5.0.3", OPEN_MPI, False),
        ("HYDRA build details:\n    Version: 4.1.2", OPEN_MPI, False),
        ("HYDRA build details:\n    Version: 4.1.2", "MPICH Version:      4.3.0", True),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "MPICH Version: 3.4", True),
        ("mpirun (Open MPI) 4.1.6", "Intel(R) MPI Library 2021.9", False),
        ("", OPEN_MPI, True),
        ("something new", OPEN_MPI, True),
    ],
)
def test_an_mpi_is_started_by_its_like(mpirun: str, mpi: str, fits: bool) -> None:
    assert (why_mpi_does_not_fit(mpirun, mpi, "/image") is None) == fits


def test_a_package_is_the_job_s() -> None:
    here = Contents("3.11.7", "/", [], True, "/p/hpc_train", "0.1.0", "a" * 32, None, OPEN_MPI)
    assert why_no_package(here, "a" * 32, "0.1.0", "/image") is None
    for changed, said in (
        ({"package": None}, "has no package hpc_train"),
        ({"code": None, "problem": "bad"}, r"cannot be used \(bad\)"),
        ({"code": "b" * 32}, r"has hpc_train 0\.1\.0 \(bbbbbbbb\), and the job is of 0\.1\.0 \(aaaaaaaa\)"),
        ({"mpi": None, "without_mpi": "No module named 'mpi4py'"}, "its mpi4py has no MPI"),
    ):
        told = why_no_package(replace(here, **changed), "a" * 32, "0.1.0", "/image")  # type: ignore[arg-type]
        assert told is not None and re.search(said, told), told


def test_a_job_needs_its_data_and_what_links_lead_to(tmp_path: Path) -> None:
    for name in ("data/train-0.h5", "far/train-1.h5"):
        (tmp_path / name).parent.mkdir()
        with h5py.File(tmp_path / name, "w") as file:
            file["x"], file["y"] = np.zeros((8, 2), np.float32), np.zeros(8, np.int64)
    (tmp_path / "data/train-1.h5").symlink_to(tmp_path / "far/train-1.h5")
    (tmp_path / "model.py").write_text("def build_model(params): ...\n")
    (tmp_path / "job.yaml").write_text(
        "name: a\nmodel: model.py:build_model\ntrain: {max_steps: 1}\ndata:\n"
        "  train: {shards: data/train-*.h5, features: x, label: y, batch_size: 2}\n"
        "  eval: {shards: data/train-0.h5, features: x, label: y, batch_size: 2}\n"
    )
    found = paths_of(load_job(tmp_path / "job.yaml"), tmp_path)
    assert found == [str(tmp_path / "data"), str(tmp_path / "far")]
    assert paths_in(["-m", "x", "/a/b", "--data=/c", "--n=3", "rel/x"]) == ["/a/b", "/c"]


def test_the_variable_of_the_script_has_an_image_and_folders() -> None:
    assert container_from("/i.sif,/data,/a:/b") == Container(image="/i.sif", binds=("/data", "/a:/b"))
    assert container_from("i.sif").image == str(Path.cwd() / "i.sif")
    with pytest.raises(UserError, match="HPC_TRAIN_CONTAINER: 'data' is not allowed"):
        container_from("/i.sif,data")
