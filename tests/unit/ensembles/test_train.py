"""Members until there are enough: which are trained, replaced, or given up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train import UserError
from hpc_train.ensembles import train
from hpc_train.ensembles.begin import Ensemble
from hpc_train.ensembles.train import train_members
from hpc_train.outcome import EXIT_FAILED, EXIT_TERMINATED
from hpc_train.tuning.drive import DriveRequest
from hpc_train.tuning.execution.driver import Listeners
from hpc_train.tuning.execution.first_look import GoalError
from hpc_train.tuning.search.study import Leaving
from tests.studies import DRIVER, opened, study_in

SPACE = "space: {run.tf_random_seed: {int: [0, 1000]}}"
REQUEST = DriveRequest()


@pytest.fixture
def ensemble(tmp_path: Path) -> Ensemble:
    study = opened(study_in(tmp_path / "made", SPACE, "max_trials: 3", "max_failed_trials: 2"))
    return Ensemble(study, None, SimpleNamespace(runs=3))  # type: ignore[arg-type]


def drives(monkeypatch: pytest.MonkeyPatch, states: Iterator[str]) -> None:
    """Has trials end in these states, one after the other."""

    def drive(study: Any, settings: Any, request: Any, listeners: Listeners) -> int:
        while (answer := study.ask(DRIVER)).what == "run":
            state = next(states)
            if state == "stop":
                study.leave(answer.trial, DRIVER, Leaving("waiting", 1, 1.0))
                return EXIT_TERMINATED
            study.leave(answer.trial, DRIVER, Leaving(state, 1, None if state == "failed" else 1.0))
        failed = len(list(study.state.of("failed")))
        return EXIT_FAILED if failed > 2 or not any(study.state.of("completed")) else 0

    monkeypatch.setattr(train, "drive", drive)


@pytest.mark.parametrize(
    ("states", "code", "members"),
    [
        (["completed"] * 3, 0, [0, 1, 2]),
        (["completed", "failed", "completed", "completed"], 0, [0, 2, 3]),
        (["failed", "failed", "completed", "completed", "completed"], 0, [2, 3, 4]),
        (["failed", "failed", "failed"], EXIT_FAILED, []),
        (["completed", "failed", "failed", "failed"], EXIT_FAILED, [0]),
        (["completed", "stop"], EXIT_TERMINATED, [0]),
    ],
)
def test_members_that_fail_are_replaced(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, states: list[str], code: int, members: list[int]
) -> None:
    drives(monkeypatch, iter(states))
    assert train_members(ensemble, REQUEST, Listeners(lambda _: None)) == code
    assert [trial.number for trial in ensemble.trained()] == members


def test_only_what_is_missing_is_trained(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = Listeners(lambda _: None)
    drives(monkeypatch, iter(["completed", "stop", "completed", "completed"]))
    assert train_members(ensemble, REQUEST, listeners) == EXIT_TERMINATED
    assert train_members(ensemble, REQUEST, listeners) == 0
    assert [trial.runs for trial in ensemble.study.state.trials] == [1, 2, 1]
    drives(monkeypatch, iter([]))
    assert train_members(ensemble, REQUEST, listeners) == 0


def test_a_metric_that_nothing_reports_is_named_as_in_the_job(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drive(*_: Any) -> int:
        raise GoalError("--set tune: tune.goal.metric: no evaluation reports 'x'; allowed: loss")

    monkeypatch.setattr(train, "drive", drive)
    with pytest.raises(UserError, match=r"^run\.best_metric: no evaluation reports 'x'; allowed: loss$"):
        train_members(ensemble, REQUEST, Listeners(lambda _: None))
