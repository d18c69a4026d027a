"""Ranks in Charliecloud's containers on a real Slurm of two nodes: weights, endings, and what does not fit is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.slurm.back_ends import BackEnd, make_program
from tests.slurm.cluster import SlurmCluster
from tests.slurm.images import PACKAGES, make_image
from tests.slurm.jobs import (
    ended_as,
    job_environment,
    log,
    make_folder,
    not_here,
    set_step_secs,
    status,
    wait_for_checkpoint,
    write_job,
)
from tests.slurm.test_launcher import end, start
from tests.slurm.test_lost_nodes import assert_same_weights
from tests.support import wait_for

TWO_NODES = (
    *("--set=resources.tier=CUSTOM", "--set=resources.nodes=2", "--set=resources.ranks_per_node=1"),
    "--set=resources.environment={OMPI_MCA_btl: 'self,tcp', OMPI_MCA_osc: pt2pt}",
)
ROLES = (
    *("--set=resources.chief={}", "--set=resources.workers={nodes: 1}"),
    "--set=resources.time=10",  # Slurm starts such jobs by backfill, which wants one
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("ch-run") is None:
        not_here("ch-run is not on PATH: install charliecloud-runtime")
    return make_image(tmp_path_factory.mktemp("image") / "hpc_train")


@pytest.fixture
def slurm(tmp_path: Path, slurm_cluster: SlurmCluster) -> Iterator[BackEnd]:
    with BackEnd(tmp_path, slurm_cluster) as found:
        found.env |= job_environment(slurm_cluster, anew=True)
        yield found


@pytest.fixture
def apart() -> Iterator[Path]:
    """A folder of the node that an image does not have: /var/tmp is empty there."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def without_package(tmp_path: Path) -> str:
    """What hides hpc_train in an image."""
    (tmp_path / "nothing").mkdir()
    return f"{tmp_path / 'nothing'}:{PACKAGES}/hpc_train"


def test_ranks_in_containers_train_the_same_weights(slurm: BackEnd, image: Path, apart: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    job_file = yaml.safe_load((folder / "job.yaml").read_text())
    shutil.copytree(folder / "data", apart / "data")
    for section in ("train", "eval"):
        if section in job_file["data"]:
            name = job_file["data"][section]["shards"]
            job_file["data"][section]["shards"] = str(apart / name)
    (folder / "job.yaml").write_text(yaml.safe_dump(job_file))
    ways = {
        "bare": (),
        "contained": (f"--set=resources.container={image}",),
        "by_srun": (f"--set=resources.container={image}", "--set=resources.launcher=srun"),
        "by_roles": (f"--set=resources.container={image}", *ROLES),
    }
    for name, settings in ways.items():
        job = slurm.submit_file(folder / "job.yaml", name, *TWO_NODES, *settings)
        assert job.end() == ("SUCCEEDED", 0), job.log()
        assert (f"the ranks run in {image} (charliecloud; Python 3." in job.log()) == (name != "bare"), job.log()
        assert_same_weights(job.job_dir, slurm.root / "bare", 20)
    noted = json.loads((slurm.root / "contained/environment.json").read_text())["environment"]
    assert noted["HPC_TRAIN_CONTAINER"] == str(image) and "PYTHONPATH" not in noted
    assert noted["PATH"] == (image / "ch/environment").read_text().strip().removeprefix("PATH=")


def test_jobs_in_containers_end_as_others(slurm_cluster: SlurmCluster, folder: Path, image: Path) -> None:
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=20)
    set_step_secs(folder, 0.05)  # which leaves the cores to others
    job_dir = folder / "runs/tiny"

    def begin() -> int:
        return start(slurm_cluster, folder, "mpirun", HPC_TRAIN_CONTAINER=str(image))

    job = begin()
    wait_for_checkpoint(job_dir)
    slurm_cluster.scancel(job, "--batch", "--signal=TERM")
    assert ended_as(end(slurm_cluster, job)) == ("FAILED", 3, 0), log(folder)
    assert "stopped after saving; submit again to continue" in log(folder)
    stopped = status(job_dir)["step"]

    job = begin()
    wait_for(lambda: status(job_dir)["state"] == "running" and status(job_dir)["step"] > stopped, lambda: log(folder))
    (folder / "step_secs").unlink()
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=20, trian={})
    pid = status(job_dir)["pid"]
    Path(f"/proc/{pid}/root/ch").stat()  # the rank that reports is in the image
    os.kill(pid, signal.SIGKILL)
    assert ended_as(end(slurm_cluster, job)) == ("FAILED", 137, 0), log(folder)
    assert ended_as(end(slurm_cluster, begin())) == ("FAILED", 2, 0), log(folder)
    assert "trian" in log(folder)


def test_what_does_not_fit_is_told_before_a_rank_starts(slurm: BackEnd, image: Path, tmp_path: Path) -> None:
    hidden = f"{{image: {image}, binds: ['{without_package(tmp_path)}']}}"
    model = make_folder(tmp_path / "model") / "job.yaml"
    program = make_program(tmp_path / "own", nodes=2)
    told = slurm.run("submit", model, "--name=no", *TWO_NODES, f"--set=resources.container={hidden}", code=2)
    assert f"container: {image}: has no package hpc_train for its python3" in told.err
    job = slurm.submit_file(program, "own", f"--set=resources.container={hidden}")  # it needs none
    assert job.end() == ("SUCCEEDED", 0), job.log()
    assert "rank 1 of 2 says one" in job.log()

    told = slurm.run("submit", program, "--name=no", f"--set=resources.container={tmp_path}/none.sif", code=2)
    assert f"container: there is no image {tmp_path}/none.sif here" in told.err
    told = slurm.run(
        *("submit", program, "--name=no", f"--set=resources.container={image}", "--set=resources.pack=auto"), code=2
    )
    assert "`pack` is not for a job in a container" in told.err

    link = tmp_path / "link"
    link.symlink_to(image)
    held = ("--set=resources.sbatch=[--hold]", f"--set=resources.container={link}")
    job = slurm.submit_file(program, "gone", *held)
    link.unlink()
    assert slurm.cluster is not None
    slurm.cluster.run(["scontrol", "release", job.number])
    assert job.end() == ("FAILED", 2), job.log()
    assert f"container: there is no image {link} here" in job.log() and "says one" not in job.log(), job.log()
    assert not (slurm.root / "no").exists()


def test_the_queue_of_this_machine_has_containers(image: Path, tmp_path: Path) -> None:
    with BackEnd(tmp_path, None) as local:
        program = make_program(tmp_path / "own", ranks_per_node=2)
        container = f"--set=resources.container={image}"
        told = local.run("submit", program, "--name=no", container, code=2)
        assert "container: charliecloud is not on PATH here (ch-run): load its module" in told.err
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / "ch-run").symlink_to(shutil.which("ch-run") or "")
        local.env["PATH"] += f":{programs}"
        job = local.submit_file(program, "own", container)
        assert job.end() == ("SUCCEEDED", 0), job.log()
        assert "rank 1 of 2 says one" in job.log() and f"the ranks run in {image}" in job.log()
