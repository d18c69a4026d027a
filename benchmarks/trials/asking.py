"""How long a study of many trials takes to say what comes next. Its trials train nothing."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.usage import MissingError, tell

from hpc_train.config.job import job_in
from hpc_train.config.yaml_loader import read_yaml
from hpc_train.errors import UserError
from hpc_train.jobdir.paths import CODE
from hpc_train.tuning.search.folder import DECISIONS, DRIVERS, TRIALS, StudyFolder, StudyJob
from hpc_train.tuning.search.study import Answer, Leaving, Study

MAX_STEPS = 81
DRIVER = "0" * 16
RATE, WIDTH = "params.learning_rate", "params.width"
TUNES: Mapping[str, str] = {
    "random": "sampler: random",
    "grid": "sampler: grid",
    "random, ASHA": "sampler: random, early_stopping: asha",
    "tpe": "sampler: tpe",
    "cmaes": "sampler: cmaes",
}
"""By the way of asking, `tune` of the study."""
JOB = """\
name: asking
model: model.py:build_model
params: {{learning_rate: 0.1, width: 8}}
data:
  train: {{shards: train-*.h5, features: x, label: y}}
  eval: {{shards: test-*.h5, features: x, label: y}}
train: {{max_steps: {steps}}}
tune:
  {{goal: {{metric: accuracy, mode: max}}, {tune}, max_trials: {trials}, space: {{{space}}}}}
"""
SPACE = f"{RATE}: {{log: [1.0e-4, 1], points: 64}}, {WIDTH}: {{int: [1, 64]}}"


def ask(way: str, trials: int, asks: int, parent: Path) -> dict[str, Any]:
    """Seconds of each of `asks` calls of `Study.ask`, and of opening a study, once it has `trials` trials.

    Raises:
        MissingError: The sampler is not installed.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="asking-") as name:
        folder = StudyFolder(Path(name))
        for part in (CODE, DECISIONS, DRIVERS, TRIALS):
            (folder.path / part).mkdir()
        # trials of Optuna's samplers are drawn at random: what these say of 1,000 trials is what is timed
        study = _opened(folder, way if way in ("grid", "random, ASHA") else "random", trials + asks + 1)
        while len(study.state.trials) < trials:
            _train(study, study.ask(DRIVER))
        begun = time.perf_counter()
        study = _opened(folder, way, trials + asks + 1)
        open_secs = time.perf_counter() - begun
        try:
            _train(study, study.ask(DRIVER))  # imports what the sampler needs
        except UserError as error:
            raise MissingError(str(error)) from None
        secs = []
        for _ in range(asks):
            begun = time.perf_counter()
            answer = study.ask(DRIVER)
            secs.append(time.perf_counter() - begun)
            _train(study, answer)
    tell(f"{way}: {1000 * sorted(secs)[len(secs) // 2]:.1f} ms")
    return {"secs": secs, "open_secs": open_secs}


def _opened(folder: StudyFolder, way: str, trials: int) -> Study:
    path = folder.path / CODE / "job.yaml"
    path.write_text(JOB.format(steps=MAX_STEPS, tune=TUNES[way], trials=trials, space=SPACE))
    document = read_yaml(path)
    return Study(folder, StudyJob(document, job_in(document), folder.path))


def _train(study: Study, answer: Answer) -> None:
    """Makes up what the trial of an answer has measured, as far as it may run."""
    trial = answer.trial
    assert trial is not None, "there are trials enough"
    quality = 1 - abs(math.log10(trial.point[RATE]) + 2) / 4 - abs(trial.point[WIDTH] - 20) / 200
    state, last = "completed", MAX_STEPS
    for rung, step in enumerate(study.rule.rungs if study.rule is not None else ()):
        judged = study.judge(trial, rung, step, quality - 0.5 / step)
        if judged is not None and judged.verdict != "promoted" and judged is trial.verdict:
            state, last = judged.verdict, step
            break
    study.leave(trial, DRIVER, Leaving(state, last, quality - 0.5 / last))
