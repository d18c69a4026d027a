"""Checkpoints of real jobs: which of them stay, what they hold, and what is said of them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

import h5py

from tests.ranks import train
from tests.support import Job, run_program, run_ranks

MakeJob = Callable[..., Job]


def saved_steps(job: Job) -> list[int]:
    return sorted(int(path.name[5:]) for path in (job.job_dir / "checkpoints").glob("step-*"))


def evaluations(job: Job) -> dict[int, float]:
    records = [json.loads(line) for line in (job.job_dir / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["accuracy"] for record in records if record["kind"] == "eval"}


def test_the_best_stays_and_is_remembered(make_job: MakeJob) -> None:
    """The model gets worse after its eighth step, and better than ever in a second run."""
    model = """
import keras

class Decline(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, good):
        self.good = good

    def __call__(self, step):
        return keras.ops.where(keras.ops.cast(step, "float32") < self.good, 0.1, -0.1)

    def get_config(self):
        return {}

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(Decline(params["good"])), loss, metrics=["accuracy"])
    return model
"""
    run = {"save_checkpoints_steps": 4, "keep_checkpoint_max": 2, "best_metric": "accuracy", "best_mode": "max"}
    job = make_job(model=model, params={"good": 8}, train={"max_steps": 40}, run=run)
    done = train(job, 2)
    assert done.returncode == 0, done.stderr
    found = evaluations(job)
    best = max(found, key=lambda step: (found[step], -step))
    assert best < 32
    assert saved_steps(job) == [best, 36, 40]
    with h5py.File(job.job_dir / "checkpoints/step-00000040/state.h5") as file:
        expected = {"metric": "accuracy", "mode": "max", "value": found[best], "step": best}
        assert json.loads(file.attrs["best"]) == expected
    text = job.file.read_text().replace("good: 8", "good: 100").replace("max_steps: 40", "max_steps: 44")
    job.file.write_text(text)
    assert train(job, 0).returncode == 0
    assert saved_steps(job) == [best, 40, 44], "a second run does not forget it"

    command = [sys.executable, "-m", "hpc_train", "checkpoints", str(job.job_dir)]
    listed = run_program([*command, "--verify"], job.folder)
    assert listed.returncode == 0
    assert re.findall(
        r"^ *(\d+)  \S+ \S+ +[\d.]+ kB +(\d)  yes, verified(  best evaluation)?", listed.stdout, re.M
    ) == [
        (str(best), "2", "  best evaluation"),
        ("40", "2", ""),
        ("44", "1", ""),
    ], listed.stdout
    (job.job_dir / "checkpoints/step-00000040/manifest.json").unlink()
    listed = run_program([*command, "--json"], job.folder)
    assert listed.returncode == 1
    entries = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(entry["step"], entry["whole"]) for entry in entries] == [(best, True), (40, False), (44, True)]
    assert "manifest.json: missing" in entries[1]["why"]
    missing = run_program([*command[:-1], str(job.folder)], job.folder)
    assert missing.returncode == 2
    assert "no such folder" in missing.stderr


def test_what_is_told_of_saves(make_job: MakeJob) -> None:
    """The warning's lead is too short for a save, and the metric's name is wrong."""
    job = make_job()
    program = ["-m", "hpc_train", "train", job.file, "--job-dir", job.job_dir]
    done = run_ranks(0, program, job.folder, HPC_TRAIN_WARNING_SECS="0.0001")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^checkpoint \S+/step-000000[12]0 \(\d+\.\d kB, \d\.\d\d s\)$", done.stdout, re.M)) == 2
    assert done.stdout.count("but the job is warned only 0.0001 s before its end") == 1, done.stdout
    assert f"tensorboard --logdir {job.job_dir} --host localhost" in done.stdout
    typo = make_job("typo", run={"best_metric": "acuracy"})
    done = train(typo, 2)
    assert done.returncode == 2
    said = "hpc-train: error: run.best_metric: 'acuracy' is no metric of this model; did you mean `accuracy`? allowed: "
    assert done.stderr.splitlines()[0] == f"{said}loss, accuracy"
    assert not typo.job_dir.exists()
