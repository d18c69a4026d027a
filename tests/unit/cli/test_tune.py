"""hpc-train tune: what is said of a study, and asked of one; it runs no trial here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hpc_train.cli.app import app
from hpc_train.jobdir.paths import STUDY_FILE
from hpc_train.tuning.search.folder import StudySettings
from tests.job_dirs import record, write_job
from tests.studies import DRIVER, SPACE, opened, study_in


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["tune", *map(str, words)])


def a_study(path: Path, lines: Sequence[str] = (SPACE, "max_trials: 3")) -> Path:
    """One whose first trial runs, and has measured 0.75."""
    folder = study_in(path, *lines)
    settings = StudySettings("demo", str(path / "job.yaml"), "job.yaml", (), 1, 0.0, "1", {})
    (path / STUDY_FILE).write_text(json.dumps(asdict(settings)))
    study = opened(folder)
    trial = study.ask(DRIVER).trial
    assert trial is not None
    write_job(folder.job_dir(trial).path, [record("eval", 9, 1.0, accuracy=0.75)])
    return path


def test_the_status_of_a_study(tmp_path: Path) -> None:
    path = a_study(tmp_path / "study")
    shown = call("status", path)
    assert shown.exit_code == 0
    assert shown.output.splitlines()[0].endswith("1 trial of 3 (1 waiting); goal: max eval accuracy")
    assert "0.75" in shown.output
    (line,) = call("status", path, "--json").output.splitlines()
    found = json.loads(line)
    assert (found["trial"], found["state"], found["value"], found["best_step"]) == (0, "waiting", 0.75, 9)


def test_a_command_that_is_misspelt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("statsu", "study")
    assert done.exit_code == 2
    assert "'statsu' is no command" in done.output
    assert "did you mean `status`?" in done.output
    a_study(tmp_path / "stat")
    assert call("stat", "--set", "name=x").output.startswith("hpc-train: error: --set: a study that goes on")


def test_a_study_is_asked_to_stop_once(tmp_path: Path) -> None:
    path = a_study(tmp_path / "study")
    assert "its trials save and stop" in call("stop", path).output
    assert "the study is stopped already" in call("stop", path).output
    assert "stopped: hpc-train tune stop" in call("status", path).output


def test_trials_are_added(tmp_path: Path) -> None:
    path = a_study(tmp_path / "study")
    assert "the study may have 5 trials now" in call("add-trials", path, 2).output
    assert "the study may have 6 trials now" in call("add-trials", path, 1).output
    assert "100,000 in all" in call("add-trials", path, 10**9).output
    for wrong in (10**9, 0, "x"):
        assert call("add-trials", path, wrong).exit_code == 2
    grid = a_study(tmp_path / "grid", ("space: {params.width: {int: [1, 2]}}", "sampler: grid"))
    assert "of which there are no more" in call("add-trials", grid, 1).output


@pytest.mark.parametrize("command", ["report", "describe", "logs"])
def test_commands_of_jobs_tell_where_those_of_a_study_are(tmp_path: Path, command: str) -> None:
    path = a_study(tmp_path / "study")
    done = CliRunner().invoke(app, [command, str(path)])
    assert done.exit_code == 2
    assert f"{path}: is a study; its jobs are in {path}/trials; see hpc-train tune --help" in done.output


@pytest.mark.parametrize("command", ["status", "stop", "run", "resume"])
def test_what_is_no_study_is_told(tmp_path: Path, command: str) -> None:
    done = call(command, tmp_path)
    assert done.exit_code == 2
    assert f"{tmp_path}: is no study" in done.output


def test_what_was_settled_when_a_study_began_is_refused_later(tmp_path: Path) -> None:
    path = a_study(tmp_path / "study")
    for words, option in [(["--set", "name=x"], "--set"), (["--ranks", "2"], "--ranks"), (["--study", "x"], "--study")]:
        done = call(path, *words)
        assert done.exit_code == 2
        assert f"{option}: a study that goes on is as it was begun; leave it out" in done.output


def test_a_job_file_that_is_missing_or_has_no_study_is_told(tmp_path: Path) -> None:
    done = call(tmp_path / "job.yaml")
    assert done.exit_code == 2
    assert "job.yaml: cannot be read" in done.output
    (tmp_path / "job.yaml").write_text("name: demo\n")
    assert call(tmp_path / "job.yaml").exit_code == 2


def test_a_damaged_decision_is_told_in_a_line(tmp_path: Path) -> None:
    path = a_study(tmp_path / "study")
    (path / "decisions" / "00000001.json").write_text("{}")
    done = call("status", path)
    assert done.exit_code == 2
    assert "decisions/00000001.json: is no decision of a study" in done.output
