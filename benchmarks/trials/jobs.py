"""The studies that studies.py runs: trials of training, by `hpc-train tune` and by Optuna with a job a trial."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from support.launch import REPOSITORY, Started, environment
from support.usage import tell

from hpc_train.data import write_shards
from hpc_train.tuning.begin import open_study
from hpc_train.tuning.search.folder import StudyFolder

SLOTS = 2
STUDY = "runs/study"
"""A folder that is not among the code which a study copies."""
LIMIT_SECS = 3600.0
EXAMPLE = REPOSITORY / "examples" / "fashion_mnist"
FEATURES, CLASSES = 256, 10
SUMMARY_STEPS, TRIED_STEPS = 20, 300
MODEL = '''"""A small network."""

import keras
from keras import layers


def build_model(params):
    """Numbers [B, 256] to logits [B, 10]."""
    hidden = [layers.Dense(512, activation="relu"), layers.Dense(512, activation="relu")]
    model = keras.Sequential([keras.Input((256,)), *hidden, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(params["learning_rate"]), loss, metrics=["accuracy"])
    return model
'''
JOB = f"""name: trial
model: model.py:build_model
params: {{learning_rate: 0.01}}
data:
  train: {{shards: train-*.h5, features: x, label: y, batch_size: 64, seed: 1}}
  eval: {{shards: test-*.h5, features: x, label: y, batch_size: 64}}
run: {{tf_random_seed: 1, save_summary_steps: {SUMMARY_STEPS}}}
train: {{max_steps: 100}}
eval: {{steps: null}}
resources: {{ranks_per_node: 1}}
"""
TUNE = """tune:
  goal: {metric: accuracy, mode: max}
  max_trials: 2
  space: {params.learning_rate: {log: [0.001, 0.1]}}
"""
OPTUNA = """import json, subprocess, sys

import optuna

trials, at_once = map(int, sys.argv[1:3])


def objective(trial):
    job_dir, rate = f"runs/study/trials/{trial.number:04d}", trial.suggest_float("learning_rate", 0.001, 0.1, log=True)
    settings = [f"params.learning_rate={rate}", "run.report=false", *sys.argv[3:]]
    words = [word for setting in settings for word in ("--set", setting)]
    launch = [sys.executable, "-m", "hpc_train", "launch", "-n", "1", "job.yaml", "--job-dir", job_dir]
    subprocess.run([*launch, *words], check=True)
    records = [json.loads(line) for line in open(f"{job_dir}/metrics.jsonl")]
    return [record["accuracy"] for record in records if record["kind"] == "eval"][-1]


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
study.optimize(objective, n_trials=trials, n_jobs=at_once)
"""


def step_secs(parent: Path) -> float:
    """Seconds of a step of a job on one rank, alone."""
    with _folder(parent) as folder:
        words = ["launch", "-n", "1", "job.yaml", "--job-dir", "job", *_set([f"train.max_steps={TRIED_STEPS}"])]
        _run("a job", [sys.executable, "-m", "hpc_train", *words], folder)
        return training_secs(_records(folder / "job"), TRIED_STEPS) / TRIED_STEPS


def short(trials: int, steps: int, words: Sequence[str], parent: Path) -> dict[str, Any]:
    """A study of trials of equal length on SLOTS slots; see `told`."""
    with _folder(parent) as folder:
        (folder / "study.yaml").write_text(JOB + TUNE)
        settings = [f"tune.max_trials={trials}", f"train.max_steps={steps}"]
        secs = tune(folder, ["study.yaml", *words, *_set(settings)])
        return told(folder, secs)


def of_optuna(trials: int, steps: int, parent: Path) -> dict[str, Any]:
    """The same trials by Optuna, as many at once, each a process `hpc-train launch` with ranks of its own."""
    with _folder(parent) as folder:
        (folder / "search.py").write_text(OPTUNA)
        words = ["search.py", f"{trials}", f"{SLOTS}", f"train.max_steps={steps}"]
        secs = _run("Optuna", [sys.executable, *words], folder)
        tell(f"Optuna: {trials} trials in {secs:.1f} s")
        job_dirs = sorted((folder / STUDY / "trials").iterdir())
        return {"secs": secs, "training": [training_secs(_records(job_dir), steps) for job_dir in job_dirs]}


def unequal(pairs: int, long: int, parent: Path) -> dict[str, Any]:
    """A study whose trials make `long` steps and a quarter of them, in turns; see `told`."""
    rates = [round(0.001 * 1.1**number, 6) for number in range(pairs)]
    space = f"{{params.learning_rate: {{choice: {rates}}}, train.max_steps: {{choice: [{long}, {long // 4}]}}}}"
    with _folder(parent) as folder:
        (folder / "study.yaml").write_text(
            JOB + f"tune: {{goal: {{metric: accuracy, mode: max}}, sampler: grid, space: {space}}}\n"
        )
        return told(folder, tune(folder, ["study.yaml"]))


def search(folder: Path, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """The study of the demo's network that lies in `folder`, with other settings; see `told`."""
    secs = tune(folder, ["tune.yaml", *_set([f"tune.seed={seed}", *settings])])
    try:
        return told(folder, secs)
    finally:
        shutil.rmtree(folder / STUDY)


@contextmanager
def demo(parent: Path, digits: bool) -> Iterator[tuple[Path, str]]:
    """A folder with the demo's network, its study and its images, and what these are.

    Fashion-MNIST, where `make demo` or Debian's package has left it on this machine; else, or with `digits`,
    scikit-learn's digits.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="demo-") as name:
        folder = Path(name)
        for file in ("model.py", "tune.yaml"):
            shutil.copy(EXAMPLE / file, folder)
        yield folder, _write_images(folder / "data", digits)


def _write_images(data: Path, digits: bool) -> str:
    prepared = EXAMPLE / "data" / "source.json"
    if prepared.is_file() and not digits:
        shutil.copytree(prepared.parent, data)
        # without the folder that they came from
        return re.sub(r" (from|in) [~/].*", "", json.loads(prepared.read_text())["description"])
    prepare = runpy.run_path(str(EXAMPLE / "prepare.py"))
    there = prepare["DEBIAN_FOLDER"].is_dir() and not digits
    train, test = prepare["from_folder"](prepare["DEBIAN_FOLDER"]) if there else prepare["from_digits"]()
    write_shards(data / "train", train, shards=8)
    write_shards(data / "test", test, shards=2)
    return "Fashion-MNIST" if there else "scikit-learn's digits"


def tune(folder: Path, words: Sequence[str]) -> float:
    """Seconds that `hpc-train tune` takes, from its start to its end, of the study STUDY on SLOTS slots."""
    more = ["--study", STUDY, "--ranks", "1", "--parallel", f"{SLOTS}"]
    return _run("tune", [sys.executable, "-m", "hpc_train", "tune", *words, *more], folder)


def told(folder: Path, secs: float) -> dict[str, Any]:
    """What the study in `folder` has done in `secs`.

    Returns:
        secs; training: seconds of training of each trial; periods: from when to when each of its runs was, as decided;
        steps: of all trials; best: the best value.
    """
    study, _ = open_study(StudyFolder(folder / STUDY))
    trials, best = study.state.trials, study.state.best
    if best is None or any(trial.state in ("failed", "running", "waiting") for trial in trials):
        raise RuntimeError(f"trials have not come to their end: {[trial.why for trial in trials if trial.why]}")
    tell(f"{len(trials)} trials in {secs:.1f} s, {study.goal.metric} {best.value:.4g}")
    return {
        "secs": secs,
        "training": [training_secs(_records(study.folder.job_dir(trial).path), trial.step) for trial in trials],
        "periods": [trial.periods for trial in trials],
        "steps": sum(trial.step for trial in trials),
        "best": best.value,
    }


def training_secs(records: Sequence[dict[str, Any]], steps: int) -> float:
    """Seconds of training of a job from its records: of a step between its first and its last summary, times `steps`.

    0 where there are no two. What comes before the first step, and evaluating, is none of it. Pure.
    """
    found = [record for record in records if record["kind"] == "train"]
    if len(found) < 2:
        return 0.0
    first, last = found[0], found[-1]
    return float(steps * (last["time"] - first["time"]) / (last["step"] - first["step"]))


def _records(job_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()]


def _run(name: str, command: Sequence[str], folder: Path) -> float:
    begun = time.perf_counter()
    env = environment({"HPC_TRAIN_PROGRESS": "lines"})
    with Started(name, command, folder, env, folder / f"{name}.log") as program:
        program.wait(LIMIT_SECS)
    return time.perf_counter() - begun


def _set(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    """A folder with a job in it, whose rows are made."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(dir=parent, prefix="study-") as name:
        folder = Path(name)
        for part, rows in (("train", 4096), ("test", 512)):
            x, y = random.normal(size=(rows, FEATURES)).astype(np.float32), random.integers(0, CLASSES, rows)
            write_shards(folder / part, {"x": x, "y": y}, shards=2)
        (folder / "model.py").write_text(MODEL)
        (folder / "job.yaml").write_text(JOB)
        yield folder
