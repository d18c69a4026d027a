"""Studies whose trials trained nothing: the decisions are those of Study, the metrics are made up."""

from __future__ import annotations

import heapq
import json
import math
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hpc_train.config.job import job_in
from hpc_train.config.yaml_loader import read_yaml
from hpc_train.jobs.snapshot.snapshot import plan_snapshot
from hpc_train.tuning.begin import open_study
from hpc_train.tuning.search.folder import StudyFolder, StudySettings, described
from hpc_train.tuning.search.study import Leaving, Study

BEGAN = 1_700_000_000.0
SPACE = {
    "params.learning_rate": {"log": [1e-4, 1.0]},
    "params.layers": {"choice": [[16], [64, 64], [128, 64, 32]]},
    "params.optimizer": {"choice": ["adam", "sgd"]},
    "params.momentum": {"uniform": [0.0, 0.99], "when": {"params.optimizer": "sgd"}},
    "params.width": {"int": [8, 512], "scale": "log"},
}
"""Of each kind, with a choice of lists and a key that does not always matter."""

Measure = Callable[[Mapping[str, Any], float, random.Random], float | None]
"""The goal of a point after a share of all steps."""


def accuracy(point: Mapping[str, Any], share: float, noise: random.Random) -> float | None:
    """Best at a learning rate of 0.01; NaN above 0.7."""
    rate = math.log10(point["params.learning_rate"])
    if point["params.learning_rate"] > 0.7:
        return None
    top = 0.95 - 0.06 * (rate + 2) ** 2 - (0.05 if point["params.optimizer"] == "sgd" else 0)
    return max(0.1, top * (1 - math.exp(-4 * share)) + noise.gauss(0, 0.004))


def make_study(
    parent: Path,
    name: str = "digits",
    space: Mapping[str, Any] = SPACE,
    goal: Mapping[str, Any] | None = None,
    max_steps: int | None = 900,
    **tune: Any,
) -> Study:
    """A new study in `parent`/study, without trials; of `tune` the rest."""
    code = parent / "code"
    code.mkdir(parents=True)
    (code / "model.py").write_text("def build_model(params): ...\n")
    section = {"goal": goal or {"metric": "accuracy", "mode": "max"}, "space": space, "max_trials": 10, **tune}
    job = {
        "name": name,
        "model": "model.py:build_model",
        "params": {key.removeprefix("params."): None for key in space if key.startswith("params.")},
        "data": {
            part: {"shards": "*.h5", "features": "x", "label": "y", "batch_size": 16} for part in ("train", "eval")
        },
        "train": {"max_steps": max_steps},
        "tune": section,
    }
    path = code / "job.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(job)), sort_keys=False))
    folder = StudyFolder(parent / "study")
    about = described(job_in(read_yaml(path), code))
    settings = StudySettings(name, str(path), path.name, (), 1, time.time(), "1.0", about)
    assert folder.create(settings, plan_snapshot(code))
    return open_study(folder)[0]


def run_trials(
    study: Study,
    measure: Measure = accuracy,
    slots: int = 4,
    evaluations: int = 9,
    most: int | None = None,
    fails: Callable[[int], bool] = lambda number: False,
    seed: int = 0,
) -> Study:
    """Goes through the study as a driver with so many slots does, on a clock of its own; the study, opened anew.

    Args:
        most: It ends in the middle of the trial of that number, which it leaves running, as a driver that is killed.
        fails: Which trials fail at half of their way.
    """
    last = study.job.job.train.max_steps or 900
    noise, clock = random.Random(seed), [BEGAN]
    own = Study(study.folder, study.job, lambda: clock[0])
    events: list[tuple[float, int, int]] = []
    driver = "0123456789abcdef"

    def begin() -> bool:
        answer = own.ask(driver)
        trial = answer.trial
        if trial is None:
            return False
        (own.folder.job_dir(trial).path).mkdir(exist_ok=True)
        note(trial, "start", trial.step)
        if trial.lineage is not None and trial.runs == 1:
            note(
                trial, own.goal.kind, trial.begun_at, secs=0.1, **{own.goal.metric: 0.987}
            )  # of its parent's checkpoint
        heapq.heappush(events, (clock[0] + noise.uniform(5, 15), trial.number, trial.step + last // evaluations))
        return True

    def note(trial, kind, step, **values):
        line = json.dumps({"kind": kind, "step": step, "time": clock[0], **values})
        with (own.folder.job_dir(trial).path / "metrics.jsonl").open("a") as file:
            file.write(line + "\n")

    def best(trial) -> float | None:
        found = [value for value in measured.get(trial.number, []) if value is not None]
        return (max if own.goal.mode == "max" else min)(found, default=None)

    measured: dict[int, list[float | None]] = {}
    while len(events) < slots and begin():
        pass
    while events:
        clock[0], number, step = heapq.heappop(events)
        trial = own.state.trials[number]
        if most is not None and len(own.state.trials) > most:
            break
        if fails(number) and step > last / 2:
            why = f"ResourceExhaustedError: out of memory in {number}"
            own.leave(trial, driver, Leaving("failed", step, best(trial), why))
        else:
            value = measure(trial.point, step / last, noise)
            measured.setdefault(number, []).append(value)
            note(trial, own.goal.kind, step, secs=0.1, **{own.goal.metric: value})
            stays = True
            for rung, at in enumerate(own.rule.rungs if own.rule is not None else ()):
                if stays and trial.begun_at < at <= step and rung not in trial.judged:
                    compared = value if own.job.tune.population is not None else best(trial)
                    judged = own.judge(trial, rung, step, compared)
                    stays = judged is None or judged.verdict == "promoted"
            if step >= last:
                own.leave(trial, driver, Leaving("completed", step, best(trial)))
            elif not stays:
                own.leave(trial, driver, Leaving("waiting", step, best(trial)))
            else:
                heapq.heappush(events, (clock[0] + noise.uniform(5, 15), number, step + last // evaluations))
                continue
        while len(events) < slots and begin():
            pass
    return open_study(study.folder)[0]
