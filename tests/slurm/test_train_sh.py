"""slurm/train.sh on a real Slurm of two nodes: it trains, stops on a signal, goes on, and reports mistakes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import (
    TRAIN_SH,
    ended_as,
    log,
    set_step_secs,
    starts,
    status,
    wait_for_checkpoint,
    write_job,
)
from tests.support import REPOSITORY

TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")


def test_trains_a_job_file_on_two_nodes(slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path) -> None:
    job = submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml", "--job-dir", "out dir", anew=True)

    result = slurm_cluster.wait(job)

    assert (result.state, result.exit_code, result.signal) == ("COMPLETED", 0, 0), log(folder)
    current = status(folder / "out dir")
    assert (current["state"], current["step"], current["max_steps"]) == ("succeeded", 20, 20)
    assert (folder / "out dir/checkpoints/step-00000020").is_dir()
    assert len(list((folder / "out dir/export/final").iterdir())) == 1
    assert re.findall(r"Data for node: (\S+)", log(folder)) == ["n1", "n2"], log(folder)


def test_term_saves_and_submitting_again_goes_on(
    slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path
) -> None:
    job_dir = folder / "runs/tiny"  # what hpc-train takes without --job-dir
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=20)
    set_step_secs(folder, 0.05)  # which leaves the cores to others
    first = submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml")
    saved = wait_for_checkpoint(job_dir)

    slurm_cluster.scancel(first, "--batch", "--signal=TERM")

    assert ended_as(slurm_cluster.wait(first)) == ("FAILED", 3, 0), log(folder)
    assert "stopped after saving; submit again to continue" in log(folder)
    stopped = status(job_dir)
    assert stopped["state"] == "stopped"
    assert stopped["step"] >= saved
    assert (job_dir / f"checkpoints/step-{stopped['step']:08d}").is_dir()

    end = stopped["step"] + 20
    write_job(folder, max_steps=end, save_checkpoints_steps=20)
    second = submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml")

    assert ended_as(slurm_cluster.wait(second)) == ("COMPLETED", 0, 0), log(folder)
    assert (status(job_dir)["state"], status(job_dir)["step"]) == ("succeeded", end)
    assert starts(job_dir) == [0, stopped["step"]]


def test_a_preempted_job_goes_on(slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path) -> None:
    """It comes back by itself, with the same number, once the job that took its nodes has ended."""
    job_dir = folder / "runs/tiny"
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=20)
    set_step_secs(folder, 0.05)  # which leaves the cores to others
    job = submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml")
    wait_for_checkpoint(job_dir)

    all_cores = [*TWO_NODES, "--cpus-per-task=2", "--output=/dev/null"]
    urgent = slurm_cluster.sbatch([*all_cores, "--partition=urgent", "--wrap=true"], cwd=folder)
    assert slurm_cluster.wait(urgent).state == "COMPLETED"
    assert slurm_cluster.wait(job, until=["PENDING"]).state == "PENDING", log(folder)
    assert status(job_dir)["state"] == "requeued"
    saved = wait_for_checkpoint(job_dir)
    write_job(folder, max_steps=saved + 20, save_checkpoints_steps=20)

    result = slurm_cluster.wait(job)
    assert ended_as(result) == ("COMPLETED", 0, 1), log(folder)
    assert (status(job_dir)["state"], status(job_dir)["step"]) == ("succeeded", saved + 20)
    assert starts(job_dir) == [0, saved]


def test_a_mistake_in_the_job_file_fails_before_anything_is_written(
    slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path
) -> None:
    write_job(folder, max_steps=20, save_checkpoints_steps=10, trian={"max_steps": 20})
    before = sorted(folder.rglob("*"))

    result = slurm_cluster.wait(submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml"))

    assert (result.state, result.exit_code) == ("FAILED", 2), log(folder)
    assert "trian" in log(folder)
    assert sorted(path for path in folder.rglob("*") if path.name not in ("job.out", "__pycache__")) == before


def test_alone_it_runs_the_demo(slurm_cluster: SlurmCluster, submit: Callable[..., int], tmp_path: Path) -> None:
    """`sbatch slurm/train.sh` in a copy of the checkout, whose demo job is 50 steps long."""
    checkout = tmp_path / "checkout"
    example, own = "examples/fashion_mnist", shutil.ignore_patterns("data", "*.pyc")  # it prepares data of its own
    shutil.copytree(REPOSITORY / example, checkout / example, ignore=own)
    shutil.copytree(REPOSITORY / "slurm", checkout / "slurm")
    job_file = checkout / "examples/fashion_mnist/job.yaml"
    text = yaml.safe_load(job_file.read_text())
    text["train"]["max_steps"] = 50
    job_file.write_text(yaml.safe_dump(text))

    job = submit(checkout, "slurm/train.sh", anew=True)

    result = slurm_cluster.wait(job)
    assert (result.state, result.exit_code) == ("COMPLETED", 0), log(checkout)
    current = status(checkout / f"runs/fashion_mnist-{job}")
    assert (current["state"], current["step"]) == ("succeeded", 50)


def test_a_copy_elsewhere_asks_for_the_checkout(
    slurm_cluster: SlurmCluster, submit: Callable[..., int], tmp_path: Path
) -> None:
    shutil.copy(TRAIN_SH, tmp_path / "copy.sh")

    result = slurm_cluster.wait(submit(tmp_path, "copy.sh", "job.yaml"))

    assert (result.state, result.exit_code) == ("FAILED", 2), log(tmp_path)
    assert "set HPC_TRAIN_HOME" in log(tmp_path)
