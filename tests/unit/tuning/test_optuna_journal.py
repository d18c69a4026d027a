"""A study as a journal of Optuna's: what Optuna reads of it is what the study knows."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from hpc_train.cli.app import app
from tests.study_runs import BEGAN, make_study, run_trials


def load(path):
    optuna = pytest.importorskip("optuna")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    return optuna.load_study(study_name=None, storage=storage)


def export(study, path):
    return CliRunner().invoke(app, ["tune", "export", str(study.folder.path), "--optuna", str(path)])


def test_optuna_reads_what_the_study_knows(tmp_path):
    pytest.importorskip("optuna")
    study = run_trials(
        make_study(tmp_path, max_trials=30, early_stopping="asha", max_failed_trials=30), fails=lambda n: n % 9 == 0
    )
    path = tmp_path / "study.journal"
    done = export(study, path)
    assert done.exit_code == 0, done.output
    found = load(path)
    assert found.study_name == "digits" and found.direction.name == "MAXIMIZE" and found.metric_names == ["accuracy"]
    assert len(found.trials) == len(study.state.trials) == 30
    names = {"completed": "COMPLETE", "paused": "PRUNED", "failed": "FAIL"}
    for trial, read in zip(study.state.trials, found.trials, strict=True):
        assert read.state.name == names[trial.state] or (trial.value is None and read.state.name == "FAIL")
        assert read.user_attrs["trial"] == trial.name and read.user_attrs["why"] == trial.why
        assert set(read.params) == set(trial.point) == set(read.distributions)
        choices = {"params.layers", "params.optimizer"}
        assert {k: json.loads(v) if k in choices else v for k, v in read.params.items()} == trial.point
        assert read.value == (trial.value if read.state.name != "FAIL" else None)
        assert max(read.intermediate_values.values(), default=None) == trial.value
        assert read.datetime_start.timestamp() == pytest.approx(trial.periods[0][0])
        assert read.datetime_complete.timestamp() == pytest.approx(trial.periods[-1][1])
    assert found.trials[0].datetime_start.timestamp() == BEGAN
    assert found.best_trial.number == study.state.best.number
    rate = found.trials[0].distributions["params.learning_rate"]
    assert (rate.low, rate.high, rate.log) == (1e-4, 1.0, True)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_forks_are_trials_of_their_own(tmp_path):
    pytest.importorskip("optuna")
    study = run_trials(make_study(tmp_path, population={"size": 8}, max_trials=None))
    assert export(study, tmp_path / "journal").exit_code == 0
    found = load(tmp_path / "journal").trials
    assert len(found) == len(study.state.trials)
    for trial, read in zip(study.state.trials, found, strict=True):
        assert (read.user_attrs["lineage"] != "") == (trial.lineage is not None)
        assert read.state.name == {"stopped": "PRUNED", "completed": "COMPLETE"}[trial.state]
        assert max(read.intermediate_values.values()) == trial.value
        assert min(read.intermediate_values) > trial.begun_at


def test_trials_that_run_or_gave_no_number(tmp_path):
    pytest.importorskip("optuna")
    study = run_trials(make_study(tmp_path), most=5)
    path = tmp_path / "journal"
    assert export(study, path).exit_code == 0
    assert {t.state.name for t in load(path).trials} == {"COMPLETE", "RUNNING"}

    none = run_trials(make_study(tmp_path / "none", goal={"metric": "loss", "mode": "min"}), lambda *_: None)
    assert export(none, path).exit_code == 0  # in the place of the other one
    found = load(path)
    assert found.direction.name == "MINIMIZE" and {t.state.name for t in found.trials} == {"FAIL"}


def test_a_study_without_trials(tmp_path):
    pytest.importorskip("optuna")
    assert export(make_study(tmp_path), tmp_path / "journal").exit_code == 0
    assert load(tmp_path / "journal").trials == []


def test_where_it_cannot_be_written(tmp_path):
    pytest.importorskip("optuna")
    study = make_study(tmp_path)
    for path, why in ((tmp_path, "is a folder"), (tmp_path / "none" / "journal", "cannot be written")):
        done = export(study, path)
        assert done.exit_code != 0 and why in done.output and not isinstance(done.exception, OSError)


def test_without_optuna_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = export(make_study(tmp_path), tmp_path / "journal")
    assert done.exit_code != 0 and "pip install 'hpc_train[tune]'" in done.output
    assert not (tmp_path / "journal").exists()
