"""What was combined is known again, as long as it is of the same members and still there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpc_train.config.ensemble import EnsembleSection
from hpc_train.ensembles.begin import Ensemble
from hpc_train.ensembles.combine import RESULTS_FILE, Member, Results, best_member, results_in
from hpc_train.export.export_dir import ABOUT_FILE
from hpc_train.tuning.search.study import Leaving
from tests.studies import DRIVER, opened, study_in

FOUND = Results(
    "classes",
    "eval",
    8,
    "export/ensemble/1",
    (Member(0, 20), Member(1, 10)),
    {"loss": 0.5},
    ({"loss": 0.75}, {"loss": 0.625}),
)


@pytest.fixture
def ensemble(tmp_path: Path) -> Ensemble:
    """One whose members' checkpoints are those of FOUND, which is recorded."""
    study = opened(study_in(tmp_path / "made", "space: {run.tf_random_seed: {int: [0, 9]}}", "max_trials: 2"))
    for steps, best in ((10, 20), None), ((10, 20), 10):
        trial = study.ask(DRIVER).trial
        assert trial is not None
        checkpoints = study.folder.job_dir(trial).checkpoints_path
        for step in steps:
            (checkpoints / f"step-{step:08d}").mkdir(parents=True)
        if best is not None:
            noted = {"metric": "loss", "mode": "min", "value": 1.0, "step": best}
            (checkpoints / "best.json").write_text(json.dumps(noted))
        study.leave(trial, DRIVER, Leaving("completed", 20, 1.0))
    found = Ensemble(study, None, SimpleNamespace(members=2, runs=2, combine="mean", checkpoint="best"))  # type: ignore[arg-type]
    (found.path / FOUND.export).mkdir(parents=True)
    (found.path / FOUND.export / ABOUT_FILE).write_text("{}")
    (found.path / RESULTS_FILE).write_text(json.dumps(asdict(FOUND)))
    return found


def test_results_of_the_same_members_are_taken(ensemble: Ensemble) -> None:
    assert results_in(ensemble) == FOUND


def test_members_of_one_run_are_checkpoints_evenly_apart(ensemble: Ensemble) -> None:
    snapshot = EnsembleSection(members=3, combine="snapshot")
    checkpoints = ensemble.study.folder.job_dir(ensemble.study.state.trials[0]).checkpoints_path
    for step in (9, 18, 27):
        (checkpoints / f"step-{step:08d}").mkdir()
    members = (Member(0, 9), Member(0, 18), Member(0, 27))
    found = {**asdict(FOUND), "members": [asdict(member) for member in members]}
    (ensemble.path / RESULTS_FILE).write_text(json.dumps(found))
    of_one = results_in(Ensemble(ensemble.study, ensemble.settings, snapshot))
    assert of_one is not None and of_one.members == members
    (checkpoints / "step-00000018").rmdir()
    assert results_in(Ensemble(ensemble.study, ensemble.settings, snapshot)) is None  # type: ignore[arg-type]


def test_results_of_others_are_not(ensemble: Ensemble) -> None:
    last = Ensemble(
        ensemble.study, ensemble.settings, SimpleNamespace(members=2, runs=2, combine="mean", checkpoint="last")
    )  # type: ignore[arg-type]
    assert results_in(last) is None, "of other checkpoints"
    (ensemble.path / FOUND.export / ABOUT_FILE).unlink()
    assert results_in(ensemble) is None, "the export is gone"


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({**asdict(FOUND), "rows": "many"})])
def test_results_that_cannot_be_read_are_not_there(ensemble: Ensemble, text: str) -> None:
    (ensemble.path / RESULTS_FILE).write_text(text)
    assert results_in(ensemble) is None


def test_the_best_member_has_the_smallest_loss() -> None:
    assert best_member(FOUND) == 1
    none = Results(**{**vars(FOUND), "each": ({"loss": None}, {"loss": 3.0})})
    assert best_member(none) == 1
