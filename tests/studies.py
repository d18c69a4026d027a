"""Studies whose trials train nothing: for tests of what is decided about them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from hpc_train.config.job import job_in
from hpc_train.config.tune.section import Goal
from hpc_train.config.yaml_loader import read_yaml
from hpc_train.jobdir.paths import CODE
from hpc_train.tuning.search.decisions import Decision, Judged, Left, Suggested, Taken
from hpc_train.tuning.search.folder import DECISIONS, DRIVERS, TRIALS, StudyFolder, StudyJob
from hpc_train.tuning.search.journal import Journal
from hpc_train.tuning.search.state import StudyState
from hpc_train.tuning.search.study import Answer, Leaving, Study

MAX_STEPS = 27
JOB = f"""\
name: demo
model: model.py:build
params: {{learning_rate: 0.1, width: 8, kind: a}}
data:
  train: {{shards: train-*.h5, features: x, label: y}}
  eval: {{shards: test-*.h5, features: x, label: y}}
train: {{max_steps: {MAX_STEPS}}}
tune:
  goal: {{metric: accuracy, mode: max}}
"""
SPACE = "space: {params.learning_rate: {log: [1e-4, 1]}, params.width: {int: [1, 64]}}"
DRIVER = "0123456789abcdef"


def study_in(path: Path, *lines: str) -> StudyFolder:
    """The folder of a study of JOB, with more lines of its `tune`."""
    folder = StudyFolder(path)
    for name in (CODE, DECISIONS, DRIVERS, TRIALS):
        (path / name).mkdir(parents=True)
    (path / CODE / "job.yaml").write_text(JOB + "".join(f"  {line}\n" for line in lines or (SPACE, "max_trials: 9")))
    return folder


def opened(folder: StudyFolder, clock: Callable[[], float] | None = None) -> Study:
    """The study in a folder; its clock ticks once each time that it is asked."""
    document = read_yaml(folder.path / CODE / "job.yaml")
    job = StudyJob(document, job_in(document), folder.path)
    return Study(folder, job, clock or map(float, count(len(list(folder.decisions.iterdir())))).__next__)


def quality(point: Mapping[str, Any]) -> float:
    """What a trial of a point comes to in the end: the goal of studies here."""
    rate = abs(math.log10(point.get("params.learning_rate", 1)) + 2) / 4
    return 1 - rate - abs(point.get("params.width", 20) - 20) / 200


def measured(point: Mapping[str, Any], step: int) -> float:
    """Its goal at a step."""
    return quality(point) * (1 - 0.5 / step)


def train(study: Study, answer: Answer, driver: str, dies_at: float = math.inf) -> bool:
    """Runs the trial of an answer as a driver does; False where the driver dies, at `dies_at` of its decisions."""
    trial = answer.trial
    assert trial is not None
    for rung, step in enumerate(study.rule.rungs if study.rule is not None else ()):
        if rung in trial.judged or step <= trial.begun_at:
            continue
        if dies_at <= rung:
            return False
        judged = study.judge(trial, rung, step, measured(trial.point, step))
        if judged is not None and judged.verdict != "promoted":
            if dies_at <= rung + 0.5:
                return False
            state = "paused" if judged.verdict == "paused" else "stopped"
            study.leave(trial, driver, Leaving(state, step, measured(trial.point, step), judged.why))
            return True
    if not math.isinf(dies_at):
        return False
    study.leave(trial, driver, Leaving("completed", MAX_STEPS, measured(trial.point, MAX_STEPS), ""))
    return True


def run(study: Study, driver: str = DRIVER) -> str:
    """Runs all that is left, one trial after the other; why it is over."""
    while (answer := study.ask(driver)).what == "run":
        train(study, answer, driver)
    return answer.why


def decisions_in(path: Path) -> list[Decision]:
    """The decisions in a journal."""
    found: list[Decision] = []
    Journal(path, found.append).refresh()
    return found


def files_of(folder: StudyFolder) -> Iterator[dict[str, Any]]:
    """The decisions, as they lie on the disk: numbered from 0, none missing, and each whole."""
    names = sorted(path.name for path in folder.decisions.iterdir() if path.suffix == ".json" and path.stem.isdecimal())
    assert names == [f"{number:08d}.json" for number in range(len(names))]
    return (json.loads((folder.decisions / name).read_text()) for name in names)


def check_history(folder: StudyFolder, trials: int) -> None:
    """No trial is lost, doubled, or run by two at once."""
    runs_of: dict[int, str | None] = {}
    rungs: Counter[tuple[int, int]] = Counter()
    for decision in decisions_in(folder.decisions):
        if isinstance(decision, Suggested):
            assert decision.trial == len(runs_of)
            runs_of[decision.trial] = decision.driver
        elif isinstance(decision, Taken):
            assert runs_of[decision.trial] is None, "nobody had it"
            runs_of[decision.trial] = decision.driver
        elif isinstance(decision, Left):
            assert runs_of[decision.trial] == decision.driver, "who had it"
            runs_of[decision.trial] = None
        elif isinstance(decision, Judged):
            by_now = decision.parent is not None and runs_of[decision.trial] is None
            assert by_now or runs_of[decision.trial] is not None
            rungs[decision.trial, decision.rung] += not by_now
    assert list(runs_of) == list(range(trials))
    assert set(runs_of.values()) == {None}, "all have been left"
    assert set(rungs.values()) <= {1}


def suggested(trial: int, **values: Any) -> Suggested:
    given = {"time": 0.0, "driver": DRIVER, "point": {}, "source": "random"} | values
    return Suggested(trial=trial, **given)


def taken(trial: int, **values: Any) -> Taken:
    return Taken(trial=trial, **({"time": 0.0, "driver": DRIVER, "why": "it was interrupted"} | values))


def judged(trial: int, rung: int, value: float | None, verdict: str = "promoted", **values: Any) -> Judged:
    given = {"time": 0.0, "step": rung + 1, "why": ""} | values
    return Judged(trial=trial, rung=rung, value=value, verdict=verdict, **given)


def left(trial: int, state: str, **values: Any) -> Left:
    return Left(
        trial=trial, state=state, **({"time": 0.0, "driver": DRIVER, "step": 0, "value": None, "why": ""} | values)
    )


def state_of(*decisions: Any, mode: str = "max") -> StudyState:
    """What decisions amount to."""
    state = StudyState(Goal(metric="accuracy", mode=mode), 100, None)
    for decision in decisions:
        state.hear(decision)
    return state
