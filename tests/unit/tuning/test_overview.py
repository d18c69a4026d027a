"""A study in the terminal and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from hpc_train.tuning.overview import as_objects, in_words, overview
from hpc_train.tuning.search.study import Leaving, Study
from tests.job_dirs import record, write_job
from tests.studies import DRIVER, SPACE, opened, study_in
from tests.study_runs import make_study, run_trials


def a_study(path: Path) -> Study:
    """Of four trials: one completed, one better that runs, one that has failed, and one without a number."""
    study = opened(study_in(path, SPACE, "max_trials: 9", "first: [{params.width: 3}]"))
    for number, value in enumerate((0.5, 0.8, None, None)):
        trial = study.ask(DRIVER).trial
        assert trial is not None
        if value is not None:
            write_job(study.folder.job_dir(trial).path, [record("eval", 9 + number, 1.0, accuracy=value)])
        if number != 1:
            state = "failed" if number == 2 else "completed"
            study.leave(trial, DRIVER, Leaving(state, 9, value, "[red]no such\x1b[2J file" if number == 2 else ""))
    return study


def shown(study: Study) -> str:
    console = Console(width=1000, force_terminal=False)
    with console.capture() as captured:
        for each in overview(study, 200):
            console.print(each, markup=False, emoji=False)
    return captured.get()


def test_trials_are_shown_best_first(tmp_path: Path) -> None:
    study = a_study(tmp_path / "study")
    assert in_words(study) == "4 trials of 9 (1 waiting, 2 completed, 1 failed)"
    lines = shown(study).splitlines()
    rows = [line.split() for line in lines if line[:4].isdecimal() and line[4] == " " and "failed:" not in line]
    assert [row[:3] for row in rows] == [
        ["0001", "waiting", "0.8"],
        ["0000", "completed", "0.5"],
        ["0002", "failed", "–"],
        ["0003", "completed", "–"],
    ]
    assert rows[1][-1] == "3", "the width that was given"
    assert "4 trials of 9 (1 waiting, 2 completed, 1 failed); goal: max eval accuracy" in " ".join(lines)
    assert r"0002 failed: [red]no such\x1b[2J file" in lines
    assert lines[-1] == "0003: not in trials/ any more", "nothing was measured there"


def test_values_are_shown_as_they_are(tmp_path: Path) -> None:
    study = opened(
        study_in(tmp_path / "study", 'space: {params.kind: {choice: ["[red]a\\e[0m", "b"]}}', "sampler: grid")
    )
    study.ask(DRIVER)
    assert shown(study).splitlines()[-1].split()[-1] == r"[red]a\x1b[0m"


def test_trials_as_json(tmp_path: Path) -> None:
    study = a_study(tmp_path / "study")
    found = [json.loads(json.dumps(each)) for each in as_objects(study)]
    assert [(each["trial"], each["state"], each["value"], each["best_step"]) for each in found] == [
        (1, "waiting", 0.8, 10),
        (0, "completed", 0.5, 9),
        (2, "failed", None, None),
        (3, "completed", None, None),
    ]
    assert found[1]["point"] == study.state.trials[0].point
    assert (found[1]["source"], found[0]["source"]) == ("first", "random")
    assert found[0]["job_dir"] == str(tmp_path / "study" / "trials" / "0001")


def test_a_fork_is_shown_with_its_parent(tmp_path: Path) -> None:
    study = run_trials(make_study(tmp_path, population={"size": 8}, max_trials=None))
    forks = {trial.number: trial.lineage for trial in study.state.trials if trial.lineage is not None}
    for each in as_objects(study):
        lineage = forks.get(each["trial"])
        assert each["parent"] == (lineage.parent if lineage is not None else None)
        assert each["from_step"] == (lineage.step if lineage is not None else 0)
    text = shown(study)
    for number, lineage in forks.items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"{number:04d}"))
        assert f"from {lineage.parent:04d} at step {lineage.step}" in row
    assert in_words(study).startswith(f"{len(study.state.trials)} trials (")


def test_a_study_without_trials(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study"))
    assert in_words(study) == "0 trials of 9"
    study.halt("hpc-train tune stop")
    assert in_words(study) == "0 trials of 9; stopped: hpc-train tune stop"
    assert len(list(overview(study, 200))) == 1
    assert list(as_objects(study)) == []
