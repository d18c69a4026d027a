"""hpc-train tune: trials in slots of this machine, stopped, killed and gone on with, on ranks that stay or do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hpc_train.config.job import load_job
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_TERMINATED
from tests.support import BIN, LIMIT_SECS, environment, run_program, variables, wait_for, write_rows

MODEL = """\
import os
from pathlib import Path

import keras


def build_model(params):
    cores = Path(__file__).parents[1] / "cores"
    cores.mkdir(exist_ok=True)
    (cores / f"{params['width']}-{os.getpid()}").write_text(" ".join(map(str, sorted(os.sched_getaffinity(0)))))
    if params["width"] > 100:
        raise ArithmeticError("too wide")
    layers = [keras.layers.Dense(params["width"], "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(optimizer=keras.optimizers.Adam(params["learning_rate"]), loss="mse", metrics=["mae"])
    return model
"""
JOB = """\
name: tiny
model: model.py:build_model
params: {learning_rate: 0.01, width: 4}
data:
  train: {shards: train-*.h5, features: x, label: y, batch_size: 8, seed: 1}
  eval: {shards: test-*.h5, features: x, label: y}
run: {tf_random_seed: 1, save_summary_steps: 1000}
train: {max_steps: 90}
eval: {steps: null}
resources: {ranks_per_node: 1}
tune:
  goal: {metric: mae, mode: min}
  max_trials: 4
  space:
    params.learning_rate: {log: [0.0001, 0.1]}
    params.width: {int: [2, 40]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job file with a study, its model and its shards; studies are in runs/."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "job.yaml").write_text(JOB)
    (folder / "model.py").write_text(MODEL)
    write_rows(folder / "train-0.h5", 400, 0)
    write_rows(folder / "test-0.h5", 100, 1)
    return folder


def tune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program([str(BIN / "hpc-train"), "tune", *words], folder)


def decisions(study: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((study / "decisions").glob("[0-9]*.json"))]


def points(study: Path) -> list[Any]:
    return [decision["point"] for decision in decisions(study) if decision["kind"] == "suggested"]


def trained(study: Path) -> dict[str, dict[str, np.ndarray]]:
    """By the trial, its variables at the end."""
    return {path.name: variables(path, 90) for path in sorted((study / "trials").iterdir())}


def processes_of(study: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(study) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A study that nobody has disturbed, of one slot."""
    done = tune(folder, "job.yaml", "--study", "runs/whole", "--parallel", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the study is over: all trials have been tried" in done.stdout
    return folder / "runs/whole"


def test_trials_are_jobs_of_which_the_best_is_named(folder: Path, whole: Path) -> None:
    objects = [json.loads(line) for line in tune(folder, "status", str(whole), "--json").stdout.splitlines()]
    assert [one["state"] for one in objects] == ["completed"] * 4
    values = [one["value"] for one in objects]
    assert values == sorted(values)
    shown = tune(folder, "status", str(whole)).stdout
    assert f"{values[0]:.5g}" in shown
    assert "4 trials of 4 (4 completed); goal: min eval mae" in shown
    listed = run_program(
        [str(BIN / "hpc-train"), "list", "--root", str(whole / "trials"), "--sort", "best.mae"], folder
    )
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == [f"{one['trial']:04d}" for one in objects]
    for trial in (whole / "trials").iterdir():
        assert json.loads((trial / "status.json").read_text())["state"] == "succeeded"
        assert not (trial / "report.html").exists()
    best = load_job(whole / "code/best_trial.yaml")
    assert best.params == {key.removeprefix("params."): value for key, value in objects[0]["point"].items()}
    assert best.tune is None
    assert best.data.train.shards == (str(folder / "train-*.h5"),)


def test_ranks_that_stay_compute_what_fresh_ones_do(folder: Path, whole: Path) -> None:
    done = tune(folder, "job.yaml", "--study", "runs/fresh", "--fresh-ranks")
    assert done.returncode == 0, done.stdout + done.stderr
    fresh, kept = trained(folder / "runs/fresh"), trained(whole)
    assert points(folder / "runs/fresh") == points(whole)
    assert fresh.keys() == kept.keys()
    for name, found in fresh.items():
        assert found.keys() == kept[name].keys()
        assert all(np.array_equal(value, kept[name][key]) for key, value in found.items()), name


def stopped_at(
    folder: Path, study: Path, words: list[str], number: int, trials: int
) -> subprocess.CompletedProcess[str]:
    """A driver that gets the signal `number` once `trials` trials have begun."""
    process = subprocess.Popen(
        [str(BIN / "hpc-train"), "tune", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: len(points(study)) >= trials, f"{trials} trials")
    process.send_signal(number)
    printed, _ = process.communicate(timeout=LIMIT_SECS)
    return subprocess.CompletedProcess(words, process.returncode, printed, "")


def test_a_study_that_was_stopped_and_killed_is_the_same(folder: Path, whole: Path) -> None:
    study = folder / "runs/disturbed"
    begun = ["job.yaml", "--study", str(study), "--parallel", "1"]
    done = stopped_at(folder, study, begun, signal.SIGTERM, trials=1)
    assert done.returncode == EXIT_TERMINATED, done.stdout
    assert f"the study goes on with: hpc-train tune {study}" in done.stdout
    assert not processes_of(study), "a study that was stopped leaves nothing behind"

    done = stopped_at(folder, study, [str(study), "--parallel", "1"], signal.SIGKILL, trials=2)
    assert done.returncode == -signal.SIGKILL
    done = stopped_at(folder, study, begun, signal.SIGKILL, trials=3)
    assert done.returncode == -signal.SIGKILL
    done = tune(folder, str(study), "--parallel", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert points(study) == points(whole)
    disturbed = trained(study)
    for name, found in trained(whole).items():
        assert all(np.array_equal(value, disturbed[name][key]) for key, value in found.items()), name
    wait_for(lambda: not processes_of(study), "the ranks of drivers that were killed to leave")


@pytest.fixture(scope="module")
def halved(folder: Path) -> tuple[Path, str]:
    """A study of nine trials with early stopping, in two slots on two cores; one of its ranks is killed."""
    early = "tune.early_stopping={asha: {first_rung: 10, factor: 3}}"
    words = ["job.yaml", "--study", "runs/halved", "--set", "tune.max_trials=9", "--set", early]
    slots = min(2, len(os.sched_getaffinity(0)))
    process = subprocess.Popen(
        [str(BIN / "hpc-train"), "tune", *words, "--parallel", str(slots)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    study = folder / "runs/halved"
    wait_for(lambda: len(points(study)) >= 3, "three trials")
    for process_of in processes_of(study):
        if "hpc_train.tuning.execution.ranks" in process_of.cmdline() and "mpirun" not in process_of.name():
            process_of.kill()
            break
    printed, _ = process.communicate(timeout=LIMIT_SECS)
    assert process.returncode == 0, printed
    return study, printed


def test_halving_trains_one_trial_to_its_end_and_few_steps_of_the_others(halved: tuple[Path, str]) -> None:
    study, _ = halved
    found = decisions(study)
    assert len(points(study)) == 9
    judged = [d for d in found if d["kind"] == "judged"]
    assert len({(d["trial"], d["rung"]) for d in judged}) == len(judged), "none is compared twice"
    lowest = [d for d in judged if d["rung"] == 0]
    assert len(lowest) == 9
    assert all(d["step"] == 10 for d in lowest)
    last = {d["trial"]: d for d in found if d["kind"] == "left"}
    states = [last[number]["state"] for number in range(9)]
    assert "completed" in states
    assert set(states) <= {"completed", "paused"}
    assert sum(d["step"] for d in last.values()) < 9 * 90


def test_trials_at_once_have_cores_of_their_own(halved: tuple[Path, str]) -> None:
    study, _ = halved
    cores = [set(path.read_text().split()) for path in (study / "cores").iterdir()]
    distinct = {frozenset(one) for one in cores}
    slots = min(2, len(os.sched_getaffinity(0)))
    assert len(distinct) == slots
    assert sum(map(len, distinct)) == len(set.union(*cores)), "no core is in two slots"


def test_what_cannot_be_tuned_is_refused_before_the_first_trial(folder: Path, whole: Path) -> None:
    done = tune(folder, "job.yaml", "--study", "runs/typo", "--set", "tune.goal={metric: mea, mode: min}")
    assert done.returncode == EXIT_BAD_INPUT
    assert "no evaluation reports 'mea'; did you mean `mae`? allowed: loss, mae" in done.stderr
    assert not (folder / "runs/typo").exists()

    done = tune(folder, "job.yaml", "--study", str(whole), "--set", "train.max_steps=80")
    assert done.returncode == EXIT_BAD_INPUT
    assert "is a study of another job: train.max_steps: 80 (was 90)" in done.stderr
    assert len(points(whole)) == 4


def test_trials_that_fail_for_one_reason_end_the_study(folder: Path) -> None:
    space = "tune.space={params.width: {int: [101, 900]}}"
    words = ["--study", "runs/wide", "--set", space, "--set", "tune.max_failed_trials=1", "--parallel", "1"]
    done = tune(folder, "job.yaml", *words)
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    assert "2 trials failed, all for one reason: ArithmeticError: too wide" in done.stdout
    assert len(points(folder / "runs/wide")) == 2
    assert tune(folder, "stop", "runs/wide").returncode == 0
    assert "stopped: hpc-train tune stop" in tune(folder, "status", "runs/wide").stdout
