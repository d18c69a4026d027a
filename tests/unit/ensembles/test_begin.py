"""How an ensemble is begun: what its members are, which study gives their parameters, and what is refused."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hpc_train import UserError
from hpc_train.ensembles.begin import Ensemble, begin_ensemble, open_ensemble
from hpc_train.tuning.begin import StudyRequest, begin_study, open_study
from hpc_train.tuning.overview import overview
from hpc_train.tuning.search.folder import StudyFolder
from hpc_train.tuning.search.study import Leaving, Study
from tests.studies import DRIVER, quality
from tests.studies import run as judged
from tests.support import write_rows

JOB = """\
name: demo
model: model.py:build
params: {learning_rate: 0.1, width: 8}
data:
  train: {shards: train-*.h5, features: x, label: y, batch_size: 4}
  eval: {shards: test-*.h5, features: x, label: y}
train: {max_steps: 27}
"""
TUNE = """\
tune:
  goal: {metric: accuracy, mode: max}
  max_trials: 6
  space: {params.learning_rate: {log: [1e-4, 1]}, params.width: {int: [1, 64]}}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    write_rows(tmp_path / "train-0.h5", 16, 0)
    write_rows(tmp_path / "test-0.h5", 8, 1)
    (tmp_path / "model.py").write_text("def build(params): ...\n")
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def begun(job_file: Path, *settings: str, folder: str = "made") -> Ensemble:
    found, is_new = begin_ensemble(StudyRequest(job_file, job_file.parent / "runs" / folder, settings, 1))
    assert is_new
    return open_ensemble(found)


def refused(job_file: Path, *settings: str) -> str:
    with pytest.raises(UserError) as caught:
        begin_ensemble(StudyRequest(job_file, job_file.parent / "runs/made", settings, 1))
    assert not (job_file.parent / "runs/made").exists()
    return str(caught.value).replace(f"{job_file.parent}/", "")


def run(study: Study) -> None:
    """Has all trials that are left come to their end."""
    while (trial := study.ask(DRIVER).trial) is not None:
        study.leave(trial, DRIVER, Leaving("completed", 27, quality(trial.point)))


def trained(ensemble: Ensemble) -> list[dict[str, Any]]:
    """The points of its members, all of which are trained to their end."""
    run(ensemble.study)
    assert ensemble.missing() == 0
    return [dict(trial.point) for trial in ensemble.trained()]


def study_of(job_file: Path, trials: int = 6) -> Study:
    """A study of the job, with so many completed trials."""
    job_file.write_text(JOB + TUNE.replace("max_trials: 6", f"max_trials: {trials}"))
    study = open_study(begin_study(StudyRequest(job_file, job_file.parent / "runs/study", (), 1))[0])[0]
    run(study)
    return study


@pytest.mark.parametrize(
    ("vary", "keys"),
    [
        ("seed", {"run.tf_random_seed", "data.train.seed"}),
        ("rows", {"data.train.bootstrap"}),
        ("[seed, rows]", {"run.tf_random_seed", "data.train.seed", "data.train.bootstrap"}),
    ],
)
def test_members_have_seeds_of_their_own(job_file: Path, vary: str, keys: set[str]) -> None:
    given = ("ensemble.members=3", f"ensemble.vary={vary}")
    points = trained(begun(job_file, *given))
    assert all(set(point) == keys for point in points)
    assert all(len({point[key] for point in points}) == 3 for key in keys)
    assert trained(begun(job_file, *given, folder="again")) == points
    assert trained(begun(job_file, *given, "ensemble.seed=1", folder="other")) != points


def test_a_member_is_an_ordinary_job(job_file: Path) -> None:
    ensemble = begun(job_file, "ensemble.members=2")
    answer = ensemble.study.ask(DRIVER)
    assert answer.trial is not None
    settings = ensemble.study.job.settings_of(answer.trial, "demo")
    assert {"tune=null", "ensemble=null", "name=demo_0000", 'run.best_metric="loss"'} <= set(settings)
    assert not {"tune", "ensemble"} & set(ensemble.study.job.file_of(answer.trial).replace(":", "").split())


def test_people_read_of_members(job_file: Path) -> None:
    ensemble = begun(job_file, "ensemble.members=2")
    run(ensemble.study)
    console = Console(file=StringIO(), width=200)
    console.print(*overview(ensemble.study, 200))
    shown = console.file.getvalue().replace(str(ensemble.path), "…")
    assert shown.startswith("ensemble …: 2 members of 2 (2 completed); goal: min eval loss")
    assert shown.splitlines()[1].startswith("member") and "trial" not in shown.replace("trials/", "")
    assert ensemble.study.ask(DRIVER).why == "all members have been tried"


def test_the_best_trials_of_a_study_give_parameters(job_file: Path) -> None:
    study = study_of(job_file)
    best = sorted(study.state.trials, key=lambda trial: -(trial.value or 0))
    points = [dict(trial.point) for trial in best]
    given = ("ensemble.members=3", "ensemble.from=runs/study")
    assert trained(begun(job_file, *given, "ensemble.vary=params")) == points[:3]

    mixed = trained(begun(job_file, *given, "ensemble.vary=[params, seed]", "ensemble.best=2", folder="mixed"))
    assert [{k: v for k, v in point.items() if k.startswith("params.")} for point in mixed] == [*points[:2], points[0]]
    assert len({point["data.train.seed"] for point in mixed}) == 3


def test_an_ensemble_stays_what_it_was_when_its_study_goes_on(job_file: Path) -> None:
    study = study_of(job_file, 3)
    request = StudyRequest(
        job_file,
        job_file.parent / "runs/made",
        ("ensemble.members=2", "ensemble.from=runs/study", "ensemble.vary=params"),
        1,
    )
    folder, is_new = begin_ensemble(request)
    before = open_ensemble(folder).study.job.tune
    study.add_trials(3)
    run(study)
    assert is_new and begin_ensemble(request) == (folder, False)
    assert open_ensemble(folder).study.job.tune == before


def test_a_folder_of_something_else_is_refused_in_the_words_of_ensembles(job_file: Path) -> None:
    (job_file.parent / "made").write_text("")
    with pytest.raises(UserError, match="made: is there already, and is no ensemble; --ensemble names another folder"):
        begin_ensemble(StudyRequest(job_file, job_file.parent / "made", ("ensemble.members=2",), 1))


@pytest.mark.parametrize(("given", "every"), [("null", 9), ("3", 3), ("4", 9)])
def test_members_of_one_run_have_their_checkpoints_kept(job_file: Path, given: str, every: int) -> None:
    settings = ("ensemble.members=3", "ensemble.combine=snapshot", f"run.save_checkpoints_steps={given}")
    ensemble = begun(job_file, *settings)
    assert len(trained(ensemble)) == 1
    run_options = ensemble.study.job.job.run
    assert (run_options.save_checkpoints_steps, run_options.keep_checkpoint_max) == (every, 0)
    request = StudyRequest(job_file, job_file.parent / "runs/made", settings, 1)
    assert not begin_ensemble(request)[1]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (["train.max_steps=24"], [16, 20, 24]),
        (["run.learning_rate_cycle=4", "train.max_steps=24"], [16, 20, 24]),
        (["run.learning_rate_cycle=2", "ensemble.cycle=6", "train.max_steps=24"], [12, 18, 24]),
    ],
)
def test_weights_are_of_the_end_of_a_run_or_of_cycles_of_its_rate(
    job_file: Path, settings: list[str], steps: list[int]
) -> None:
    given = ["ensemble.members=3", "ensemble.combine=weights", *settings]
    if len(settings) == 1:
        given.append("ensemble.cycle=4")
    ensemble = begun(job_file, *given)
    job = ensemble.study.job.job
    assert ensemble.section.snapshots(job.train.max_steps or 0, job.run.learning_rate_cycle) == steps
    assert job.run.save_checkpoints_steps == steps[1] - steps[0] and ensemble.section.runs == 1


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["ensemble.members=3"], "ensemble.members: 3 (was 2)"),
        (["ensemble.members=2", "ensemble.vary=rows"], "ensemble.vary: rows (was seed)"),
        (["ensemble.members=2", "params.width=9"], "params.width: 9 (was 8)"),
    ],
)
def test_another_ensemble_in_its_folder_is_refused(job_file: Path, settings: list[str], wanted: str) -> None:
    begun(job_file, "ensemble.members=2")
    with pytest.raises(UserError) as caught:
        begin_ensemble(StudyRequest(job_file, job_file.parent / "runs/made", tuple(settings), 1))
    text = str(caught.value)
    assert f"is an ensemble of another job: {wanted}; to go on with it: hpc-train ensemble " in text


def test_a_study_is_no_ensemble(job_file: Path) -> None:
    study_of(job_file)
    folder = job_file.parent / "runs/study"
    with pytest.raises(UserError, match="is a study, and no ensemble; hpc-train tune "):
        open_ensemble(StudyFolder(folder))
    with pytest.raises(UserError, match="is a study, and no ensemble; --ensemble names another folder"):
        begin_ensemble(StudyRequest(job_file, folder, ("ensemble.members=2",), 1))
    with pytest.raises(UserError, match=r"is no study: it has no study\.json"):
        open_ensemble(StudyFolder(job_file.parent))


def test_a_study_goes_on_where_the_file_has_an_ensemble_by_now(job_file: Path) -> None:
    study_of(job_file)
    job_file.write_text(job_file.read_text() + "ensemble: {members: 2}\n")
    assert not begin_study(StudyRequest(job_file, job_file.parent / "runs/study", (), 1))[1]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ([], "job.yaml: has no `ensemble`, which says how many members there are and how they vary"),
        (
            ["ensemble.members=2", "ensemble.vary=rows", "data.train.shuffle=block"],
            "--set ensemble.vary: ensemble.vary: data.train.bootstrap: `bootstrap` draws from all rows, as `shuffle: "
            "global` reads them, but `shuffle` is 'block'",
        ),
        (
            ["ensemble.members=2", "ensemble.combine=snapshot"],
            "--set ensemble.combine: ensemble.combine: `train.max_steps` is 27; give a multiple of 2, 2 at least",
        ),
        (
            ["ensemble.members=3", "ensemble.combine=snapshot", "data.train.epochs=2"],
            "--set ensemble.combine: ensemble.combine: its run comes to `train.max_steps`; leave `early_stopping` and "
            "`epochs` out",
        ),
        (
            ["ensemble.members=2", "ensemble.combine=weights", "ensemble.cycle=9", "run.learning_rate_cycle=6"],
            "--set ensemble.combine: ensemble.combine: `cycle` is 9; give a multiple of `run.learning_rate_cycle`, 6",
        ),
        (
            ["ensemble.members=2", "ensemble.combine=weights", "train.max_steps=29"],
            "--set ensemble.combine: ensemble.combine: `train.max_steps` is 29; give a multiple of 8, 8 at least",
        ),
        (
            ["ensemble.members=2", "ensemble.vary=params", "ensemble.from=nowhere"],
            "--set ensemble.from: ensemble.from: nowhere is no study; allowed: the folder of one, as hpc-train tune "
            "makes it",
        ),
    ],
)
def test_what_cannot_be_an_ensemble_is_refused(job_file: Path, settings: list[str], wanted: str) -> None:
    assert refused(job_file, *settings) == wanted


def test_studies_that_do_not_fit_are_refused(job_file: Path) -> None:
    study_of(job_file, 2)
    given = ("ensemble.from=runs/study", "ensemble.vary=[params, seed]")
    assert refused(job_file, "ensemble.members=3", *given) == (
        "--set ensemble.from: ensemble.from: runs/study has 2 completed trials, fewer than 3; let it go on, or take "
        "fewer"
    )
    assert "ensemble.best: runs/study has 2 completed trials" in refused(
        job_file, "ensemble.members=4", "ensemble.best=3", *given
    )
    job_file.write_text(job_file.read_text().replace("{learning_rate: 0.1, width: 8}", "{learning_rate: 0.1}"))
    assert "ensemble.from: the study varies params.width, which the job does not have" in refused(
        job_file, "ensemble.members=2", *given
    )


def test_values_that_changed_while_a_trial_trained_are_no_members(job_file: Path) -> None:
    population = "population: {size: 4, every_steps: 9, quantile: 0.5}"
    job_file.write_text(JOB + TUNE.replace("max_trials: 6", population))
    study = open_study(begin_study(StudyRequest(job_file, job_file.parent / "runs/study", (), 1))[0])[0]
    judged(study)
    forks = {trial.name for trial in study.state.of("completed") if trial.lineage is not None}
    told = refused(job_file, "ensemble.members=4", "ensemble.from=runs/study", "ensemble.vary=params")
    assert any(f"trial {name} of runs/study is a fork: its values changed while it trained" in told for name in forks)


def test_trees_are_refused_by_name(job_file: Path) -> None:
    columns = "{x: {type: number, role: numeric}, y: {type: boolean, role: label, vocabulary: [false, true]}}"
    model = f"model={{builtin: gbdt, schema: {{task: binary, columns: {columns}}}}}"
    found = refused(job_file, "ensemble.members=2", model, "params={}", "data.train.features=x", "data.train.label=y")
    assert "trees (builtin: gbdt) are one already" in found, found
