"""A population of trials: forks of each other's checkpoints, also where drivers die."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.config.yaml_loader import read_yaml
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_FAILED
from tests.support import BIN, LIMIT_SECS, environment, run_program, variables, wait_for, write_rows

MODEL = """\
import keras


def build_model(params):
    layers = [keras.layers.Dense(params["width"], "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    optimizer = keras.optimizers.SGD(params["learning_rate"], momentum=params["momentum"])
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model
"""
JOB = """\
name: tiny
model: model.py:build_model
params: {learning_rate: 0.01, momentum: 0.5, width: 4}
data:
  train: {shards: train-*.h5, features: x, label: y, batch_size: 8, seed: 1}
  eval: {shards: test-*.h5, features: x, label: y}
run: {tf_random_seed: 1, save_summary_steps: 1000, keep_checkpoint_max: 1}
train: {max_steps: 60}
eval: {steps: null}
resources: {ranks_per_node: 1}
tune:
  goal: {metric: mae, mode: min}
  population: {size: 4, every_steps: 20, quantile: 0.5}
  first: [{params.learning_rate: 0.05}, {params.learning_rate: 0.03}, {params.learning_rate: 0.0002}]
  space:
    params.learning_rate: {log: [0.0001, 0.1]}
    params.momentum: {uniform: [0.1, 0.9]}
    data.train.batch_size: {choice: [4, 8, 16]}
"""
MAX_STEPS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("population")
    (folder / "job.yaml").write_text(JOB)
    (folder / "model.py").write_text(MODEL)
    write_rows(folder / "train-0.h5", 400, 0)
    write_rows(folder / "test-0.h5", 100, 1)
    return folder


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program([str(BIN / "hpc-train"), "tune", *words], folder)


def decisions(study: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted((study / "decisions").glob("[0-9]*.json"))]
    return [decision for decision in found if decision["kind"] == kind]


def history(study: Path) -> list[tuple[Any, ...]]:
    """What was decided at the rungs, and of whom each trial came."""
    compared = [
        (d["trial"], d["rung"], d["step"], d["value"], d["verdict"], d["parent"]) for d in decisions(study, "judged")
    ]
    return [*compared, *((d["trial"], d["point"], d["lineage"]) for d in decisions(study, "suggested"))]


def last_of(study: Path) -> dict[int, str]:
    return {decision["trial"]: decision["state"] for decision in decisions(study, "left")}


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A study that nobody has disturbed, of one slot."""
    done = tune(folder, "job.yaml", "--study", "runs/whole", "--parallel", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs/whole"


def forks(study: Path) -> list[dict[str, Any]]:
    return [decision for decision in decisions(study, "suggested") if decision["lineage"] is not None]


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(value, other[key]) for key, value in one.items())


def test_a_fork_is_what_a_job_resumed_by_hand_would_be(folder: Path, whole: Path) -> None:
    completed = [number for number, state in last_of(whole).items() if state == "completed"]
    founders = [one["trial"] for one in decisions(whole, "suggested") if one["lineage"] is None]
    fork = next(f for f in forks(whole) if f["trial"] in completed and f["lineage"]["parent"] in founders)
    parent, step, trial = fork["lineage"]["parent"], fork["lineage"]["step"], f"{fork['trial']:04d}"
    by_hand = folder / "runs/by_hand"
    source = whole / "trials" / trial / "checkpoints"
    of_parent = whole / f"trials/{parent:04d}/checkpoints"
    newest = max(of_parent.glob("step-*")).name
    # how far it went beyond its last rung before it heard, and with it its best evaluation, depends on the machine
    best = f"step-{json.loads((of_parent / 'best.json').read_text())['step']:08d}"
    assert {path.name for path in of_parent.glob("step-*")} == {newest, best}, "no fork needs others any more"
    assert [path.name for path in source.glob("step-*")] == [f"step-{MAX_STEPS:08d}"], "as keep_checkpoint_max says"

    # The parent trained anew comes to the same checkpoint, from which the fork's values go on.
    settings = [
        f"--set={key}={json.dumps(value)}" for key, value in decisions(whole, "suggested")[parent]["point"].items()
    ]
    launch = [str(BIN / "hpc-train"), "launch", "-n1", "job.yaml", f"--job-dir={by_hand}", "--set=tune=null"]
    often = [
        "--set=run.save_checkpoints_steps=20",
        "--set=eval.eval_every_checkpoint=true",
        "--set=eval.throttle_secs=0",
    ]
    done = run_program([*launch, *settings, *often, f"--set=train.max_steps={step}"], folder)
    assert done.returncode == 0, done.stderr
    settings = [f"--set={key}={json.dumps(value)}" for key, value in fork["point"].items()]
    done = run_program([*launch, *settings, *often], folder)
    assert done.returncode == 0, done.stderr
    assert f"going on from step {step} to step {MAX_STEPS}" in done.stdout + done.stderr
    assert same(variables(whole / "trials" / trial, MAX_STEPS), variables(by_hand, MAX_STEPS))


def test_forks_are_told_of(folder: Path, whole: Path) -> None:
    fork = forks(whole)[0]
    objects = {
        one["trial"]: one for one in map(json.loads, tune(folder, "status", str(whole), "--json").stdout.splitlines())
    }
    lineage = fork["lineage"]
    assert (objects[fork["trial"]]["parent"], objects[fork["trial"]]["from_step"]) == (
        lineage["parent"],
        lineage["step"],
    )
    words = f"from {lineage['parent']:04d} at step {lineage['step']}"
    assert words in tune(folder, "status", str(whole)).stdout
    assert tune(folder, "report", str(whole)).returncode == 0
    assert words in (whole / "report.html").read_text()
    best = min(objects.values(), key=lambda one: one["value"])
    about = (whole / "code/best_trial.yaml").read_text()
    assert about.startswith(f"# Trial {best['trial']:04d}: eval mae ")
    assert ("# It is a fork" in about) == (best["parent"] is not None)
    assert (
        read_yaml(whole / "code/best_trial.yaml").value["params"]["learning_rate"]
        == best["point"]["params.learning_rate"]
    )


def test_drivers_that_die_change_nothing(folder: Path, whole: Path) -> None:
    disturbed = folder / "runs/disturbed"
    for trials in (4, 5):
        process = subprocess.Popen(
            [str(BIN / "hpc-train"), "tune", "job.yaml", "--study", str(disturbed), "--parallel", "1"],
            cwd=folder,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda trials=trials: len(decisions(disturbed, "suggested")) >= trials, f"{trials} trials")
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_SECS)
    done = tune(folder, str(disturbed), "--parallel", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert history(disturbed) == history(whole)
    assert last_of(disturbed) == last_of(whole)
    for number, state in last_of(whole).items():
        if state == "completed":
            trial = f"trials/{number:04d}"
            assert same(variables(disturbed / trial, MAX_STEPS), variables(whole / trial, MAX_STEPS)), number


def test_a_fork_whose_parent_is_gone_has_failed(folder: Path, whole: Path) -> None:
    """A driver was killed between the decision for a fork and its first checkpoint; then its parent's was removed."""
    study = folder / "runs/cleaned"
    shutil.copytree(whole, study)
    fork = forks(study)[0]
    number = next(
        number
        for number, path in enumerate(sorted((study / "decisions").glob("[0-9]*.json")))
        if json.loads(path.read_text()).get("trial") == fork["trial"]
    )
    for path in sorted((study / "decisions").glob("[0-9]*.json"))[number + 1 :]:
        path.unlink()
    shutil.rmtree(study / f"trials/{fork['trial']:04d}")
    parent, step = fork["lineage"]["parent"], fork["lineage"]["step"]
    shutil.rmtree(study / f"trials/{parent:04d}/checkpoints/step-{step:08d}", ignore_errors=True)  # its best, it may be
    done = tune(folder, str(study), "--parallel", "1")
    words = f"it is to go on from {parent:04d} at step {step}, and there is no"
    assert words in done.stdout, done.stdout + done.stderr
    assert last_of(study)[fork["trial"]] == "failed"
    assert done.returncode in (0, EXIT_FAILED)


def test_keys_by_which_models_differ_are_refused(folder: Path) -> None:
    (folder / "wide.yaml").write_text(
        JOB.replace("data.train.batch_size: {choice: [4, 8, 16]}", "params.width: {int: [2, 40]}")
    )
    done = tune(folder, "wide.yaml", "--study", "runs/wide")
    assert done.returncode == EXIT_BAD_INPUT
    assert "wide.yaml:18: tune.space: params.width: with 40 the model has other variables than with 2" in done.stderr
    assert not (folder / "runs/wide").exists()
