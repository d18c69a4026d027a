"""slurm/train.sh on a real Slurm of two nodes: it trains, stops on a signal, goes on, and reports mistakes."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
TRAIN_SH = str(REPOSITORY / "slurm/train.sh")
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")
JOB_SECS = 180.0
DEMO_SECS = 300.0

MODEL = """\
import keras


def build_model(params):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(params["units"]), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, metrics=["accuracy"])
    return model
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as a user has it, with a space in its name: a model, shards, and job.yaml for 20 steps."""
    folder = tmp_path / "my job"
    (folder / "data").mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    generator = np.random.default_rng(0)
    for name, rows in (("train-0", 96), ("train-1", 160), ("test-0", 40)):
        x = generator.normal(size=(rows, 8)).astype(np.float32)
        with h5py.File(folder / f"data/{name}.h5", "w") as file:
            file["x"] = x
            file["y"] = (x.sum(axis=1) > 0).astype(np.int64)
    write_job(folder, max_steps=20, save_checkpoints_steps=10)
    return folder


def write_job(folder: Path, max_steps: int, save_checkpoints_steps: int, **more: Any) -> None:
    """Writes `folder/job.yaml`; `more` are further top-level keys."""
    job = {
        "name": "tiny",
        "model": "model.py:build_model",
        "params": {"units": 8},
        "data": {
            "train": {
                "shards": "data/train-*.h5",
                "features": "x",
                "label": "y",
                "batch_size": 8,
                "shuffle": "global",
                "seed": 1,
            },
            "eval": {"shards": "data/test-*.h5", "features": "x", "label": "y", "batch_size": 8},
        },
        "run": {"save_checkpoints_steps": save_checkpoints_steps},
        "train": {"max_steps": max_steps},
        "eval": {"throttle_secs": 0, "exporters": {"final": {}}},
        **more,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def log(folder: Path) -> str:
    return (folder / "job.out").read_text(errors="replace")


def status(job_dir: Path) -> dict[str, Any]:
    return dict(json.loads((job_dir / "status.json").read_text()))


def wait_for_checkpoint(job_dir: Path) -> int:
    """Waits until the job has saved, and returns the newest step saved."""
    deadline = time.monotonic() + JOB_SECS
    while time.monotonic() < deadline:
        steps = sorted(int(path.name.split("-")[1]) for path in job_dir.glob("checkpoints/step-????????"))
        if steps:
            return steps[-1]
        time.sleep(0.2)
    raise TimeoutError(f"no checkpoint in {job_dir} after {JOB_SECS:.0f} s")


def starts(job_dir: Path) -> list[int]:
    """The steps that the runs of the job began at, from metrics.jsonl."""
    records = [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if record["kind"] == "start"]


def test_trains_a_job_file_on_two_nodes(slurm_cluster: Any, submit: Callable[..., int], folder: Path) -> None:
    job = submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml", "--job-dir", "out dir")

    result = slurm_cluster.wait(job, JOB_SECS)

    assert (result.state, result.exit_code, result.signal) == ("COMPLETED", 0, 0), log(folder)
    stands = status(folder / "out dir")
    assert (stands["state"], stands["step"], stands["max_steps"]) == ("succeeded", 20, 20)
    assert (folder / "out dir/checkpoints/step-00000020").is_dir()
    assert len(list((folder / "out dir/export/final").iterdir())) == 1
    assert re.findall(r"Data for node: (\S+)", log(folder)) == ["n1", "n2"], log(folder)


def test_usr1_saves_and_submitting_again_goes_on(slurm_cluster: Any, submit: Callable[..., int], folder: Path) -> None:
    job_dir = folder / "runs/tiny"  # what hpc-train takes without --job-dir
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=500)
    first = submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml")
    saved = wait_for_checkpoint(job_dir)

    slurm_cluster.scancel(first, "--batch", "--signal=USR1")  # what --signal=B:USR1@120 sends

    result = slurm_cluster.wait(first, JOB_SECS)
    assert (result.state, result.exit_code, result.signal) == ("FAILED", 3, 0), log(folder)
    assert "stopped after saving; submit again to continue" in log(folder)
    stopped = status(job_dir)
    assert stopped["state"] == "stopped"
    assert stopped["step"] >= saved
    assert (job_dir / f"checkpoints/step-{stopped['step']:08d}").is_dir()

    end = stopped["step"] + 20
    write_job(folder, max_steps=end, save_checkpoints_steps=500)
    result = slurm_cluster.wait(submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml"), JOB_SECS)

    assert (result.state, result.exit_code) == ("COMPLETED", 0), log(folder)
    assert (status(job_dir)["state"], status(job_dir)["step"]) == ("succeeded", end)
    assert starts(job_dir) == [0, stopped["step"]]


def test_a_preempted_job_goes_on(slurm_cluster: Any, submit: Callable[..., int], folder: Path) -> None:
    """It comes back by itself, with the same number, once the job that took its nodes has ended."""
    job_dir = folder / "runs/tiny"
    write_job(folder, max_steps=10_000_000, save_checkpoints_steps=500)
    job = submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml")
    wait_for_checkpoint(job_dir)

    all_cores = [*TWO_NODES, "--cpus-per-task=2", "--output=/dev/null"]
    urgent = slurm_cluster.sbatch([*all_cores, "--partition=urgent", "--wrap=true"], cwd=folder)
    assert slurm_cluster.wait(urgent, JOB_SECS).state == "COMPLETED"
    assert slurm_cluster.wait(job, JOB_SECS, until=["PENDING"]).state == "PENDING", log(folder)
    saved = wait_for_checkpoint(job_dir)
    write_job(folder, max_steps=saved + 20, save_checkpoints_steps=500)

    result = slurm_cluster.wait(job, JOB_SECS)
    assert (result.state, result.exit_code, result.restarts) == ("COMPLETED", 0, 1), log(folder)
    assert (status(job_dir)["state"], status(job_dir)["step"]) == ("succeeded", saved + 20)
    assert starts(job_dir) == [0, saved]


def test_a_mistake_in_the_job_file_fails_before_anything_is_written(
    slurm_cluster: Any, submit: Callable[..., int], folder: Path
) -> None:
    write_job(folder, max_steps=20, save_checkpoints_steps=10, trian={"max_steps": 20})
    before = sorted(folder.rglob("*"))

    result = slurm_cluster.wait(submit(folder, *TWO_NODES, TRAIN_SH, "job.yaml"), JOB_SECS)

    assert (result.state, result.exit_code) == ("FAILED", 2), log(folder)
    assert "trian" in log(folder)
    assert sorted(path for path in folder.rglob("*") if path.name not in ("job.out", "__pycache__")) == before


def test_alone_it_runs_the_demo(slurm_cluster: Any, submit: Callable[..., int], tmp_path: Path) -> None:
    """`sbatch slurm/train.sh` in a copy of the checkout, whose demo job is 50 steps long."""
    checkout = tmp_path / "checkout"
    shutil.copytree(REPOSITORY / "examples/fashion_mnist", checkout / "examples/fashion_mnist")
    shutil.copytree(REPOSITORY / "slurm", checkout / "slurm")
    job_file = checkout / "examples/fashion_mnist/job.yaml"
    text = yaml.safe_load(job_file.read_text())
    text["train"]["max_steps"] = 50
    job_file.write_text(yaml.safe_dump(text))

    job = submit(checkout, "slurm/train.sh")

    result = slurm_cluster.wait(job, DEMO_SECS)
    assert (result.state, result.exit_code) == ("COMPLETED", 0), log(checkout)
    stands = status(checkout / f"runs/fashion_mnist-{job}")
    assert (stands["state"], stands["step"]) == ("succeeded", 50)


def test_a_copy_elsewhere_asks_for_the_checkout(slurm_cluster: Any, submit: Callable[..., int], tmp_path: Path) -> None:
    shutil.copy(TRAIN_SH, tmp_path / "copy.sh")

    result = slurm_cluster.wait(submit(tmp_path, "copy.sh", "job.yaml"), JOB_SECS)

    assert (result.state, result.exit_code) == ("FAILED", 2), log(tmp_path)
    assert "set HPC_TRAIN_HOME" in log(tmp_path)
