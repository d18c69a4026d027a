"""How a study is begun, found again and opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_train import UserError
from hpc_train.jobdir.paths import CODE, STUDY_FILE
from hpc_train.tuning.begin import StudyRequest, begin_study, open_study
from hpc_train.tuning.search.folder import StudyFolder, StudySettings
from tests.studies import DRIVER
from tests.support import Job

TUNE = {
    "goal": {"metric": "accuracy", "mode": "max"},
    "space": {"params.learning_rate": {"log": [1e-4, 1]}},
    "max_trials": 5,
}


@pytest.fixture
def begun(make_job: Callable[..., Job], tmp_path: Path) -> tuple[StudyRequest, StudyFolder]:
    request = StudyRequest(make_job(params={"learning_rate": 0.1}, tune=TUNE).file, tmp_path / "study", ranks=1)
    folder, is_new = begin_study(request)
    assert is_new
    return request, folder


def refusal(request: StudyRequest) -> list[str]:
    with pytest.raises(UserError) as caught:
        begin_study(request)
    return str(caught.value).splitlines()


def test_a_study_is_a_folder_with_a_copy_of_the_code(begun: tuple[StudyRequest, StudyFolder]) -> None:
    request, folder = begun
    assert folder.is_one()
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "code",
        "decisions",
        "drivers",
        "study.json",
        "trials",
    ]
    assert sorted(path.name for path in (folder.path / CODE).iterdir()) == ["job.yaml", "model.py"]
    study, settings = open_study(folder)
    assert (settings.name, settings.job_file, settings.entry, settings.ranks) == (
        "tiny",
        str(request.job_file),
        "job.yaml",
        1,
    )
    request.job_file.write_text("changed since")
    assert study.ask(DRIVER).what == "run"
    assert open_study(folder)[0].ask(DRIVER).what == "run"


def test_the_same_job_finds_its_study_again(begun: tuple[StudyRequest, StudyFolder]) -> None:
    request, folder = begun
    assert begin_study(request) == (folder, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": ("train.max_steps=30",)}, "train.max_steps: 30 (was 20)"),
        ({"settings": ("tune.max_trials=6",)}, "tune.max_trials: 6 (was 5)"),
        ({"settings": ("tune.goal.mode=min",)}, "tune.goal.mode: min (was max)"),
        ({"settings": ("tune.early_stopping=asha",)}, "tune.early_stopping.asha.factor: 3 (was not there)"),
        (
            {
                "settings": (
                    "tune.space={params.learning_rate: {log: [0.0001, 1]}, run.accumulate_steps: {int: [1, 2]}}",
                )
            },
            "tune.space.run.accumulate_steps.int: 1, 2 (was not there)",
        ),
        ({"ranks": 2}, "--ranks 2 (was 1)"),
    ],
)
def test_a_study_of_another_job_is_refused(
    begun: tuple[StudyRequest, StudyFolder], changes: dict[str, Any], words: str
) -> None:
    request, folder = begun
    (told,) = refusal(replace(request, **changes))
    assert told.startswith(f"{folder.path}: is a study of another job: {words}")
    assert "; to go on with it: hpc-train tune " in told


def test_a_study_of_another_job_file_is_refused(begun: tuple[StudyRequest, StudyFolder], tmp_path: Path) -> None:
    request, _ = begun
    other = shutil.copytree(request.job_file.parent, tmp_path / "other")
    (told,) = refusal(replace(request, job_file=other / "job.yaml"))
    assert f"the job file is {other}/job.yaml (was {request.job_file})" in told


def test_a_folder_of_something_else_is_refused(make_job: Callable[..., Job], tmp_path: Path) -> None:
    request = StudyRequest(make_job(params={"learning_rate": 0.1}, tune=TUNE).file, tmp_path / "study", ranks=1)
    (tmp_path / "study").write_text("")
    assert refusal(request) == [f"{tmp_path}/study: is there already, and is no study; --study names another folder"]
    (told,) = refusal(replace(request, folder=tmp_path / "a\nstudy"))
    assert r"a\nstudy: no study can be in a folder of this name" in told
    (tmp_path / "study").unlink()
    (tmp_path / "study").mkdir()
    assert begin_study(request)[1], "an empty one is none"


def test_all_that_is_wrong_is_told_at_once(make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job(params={"learning_rate": 0.1}, tune=TUNE)
    (job.file.parent / "model.py").unlink()
    for shard in (job.file.parent / "data").glob("train-*"):
        shard.unlink()
    told = "\n".join(refusal(StudyRequest(job.file, tmp_path / "study")))
    assert "model.py" in told
    assert "train-" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job"], "nothing was written"


def test_files_that_trials_would_miss_are_told_before_the_first(make_job: Callable[..., Job], tmp_path: Path) -> None:
    space = {
        "model": {"choice": ["model.py:build_model", "other.py:build"]},
        "data.train.shards": {"choice": ["data/train-*.h5", "none/*.h5"]},
        "data.train.batch_size": {"int": [1, 100_000]},
    }
    told = refusal(StudyRequest(make_job(tune=TUNE | {"space": space}).file, tmp_path / "study", ranks=1))
    for words in ('model: with "other.py:build"', 'shards: with "none/*.h5": no such', "batch_size: with 100000: "):
        assert any(line.startswith(f"tune.space.{'data.train.' * (words[0] != 'm')}{words}") for line in told), told


def test_a_job_without_tune_is_refused(make_job: Callable[..., Job], tmp_path: Path) -> None:
    assert "has no `tune`" in refusal(StudyRequest(make_job().file, tmp_path / "study"))[0]


def test_of_two_that_begin_one_makes_the_folder(begun: tuple[StudyRequest, StudyFolder], tmp_path: Path) -> None:
    request, folder = begun
    from hpc_train.jobs.snapshot.snapshot import plan_snapshot

    plan = plan_snapshot(request.job_file.parent, always=[Path("job.yaml"), Path("model.py")])
    assert not folder.create(folder.settings(), plan)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "study"], "nothing else is left"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("")
    with pytest.raises(UserError, match="is there already, and is no study"):
        StudyFolder(tmp_path / "other").create(folder.settings(), plan)


def test_what_was_made_by_others_is_told(begun: tuple[StudyRequest, StudyFolder], tmp_path: Path) -> None:
    _, folder = begun
    with pytest.raises(UserError, match=f"is no study: it has no {STUDY_FILE}"):
        open_study(StudyFolder(tmp_path))
    path = folder.path / STUDY_FILE
    good = path.read_text()
    for wrong in ("", "{", "[]", "{}", good.replace('"ranks": 1', '"ranks": 0'), good.replace('"tiny"', '"../x"')):
        path.write_text(wrong)
        with pytest.raises(UserError, match=rf"{STUDY_FILE}: is not as hpc-train tune writes it"):
            open_study(folder)
    for entry in ("../job.yaml", "/etc/passwd"):
        path.write_text(good.replace('"entry": "job.yaml"', f'"entry": "{entry}"'))
        with pytest.raises(UserError, match=r"is not as hpc-train tune writes it \(entry\)"):
            open_study(folder)
    path.write_text(good)
    assert isinstance(folder.settings(), StudySettings)
    job_file = folder.path / CODE / "job.yaml"
    job_file.write_text(job_file.read_text().partition("tune:")[0])
    with pytest.raises(UserError, match="has no `tune` any more"):
        open_study(folder)


def test_the_settings_of_a_trial(begun: tuple[StudyRequest, StudyFolder]) -> None:
    study, settings = open_study(begun[1])
    trial = study.ask(DRIVER).trial
    assert trial is not None
    laid = study.job.settings_of(trial, settings.name)
    assert f"params.learning_rate={trial.point['params.learning_rate']}" in laid
    assert "name=tiny_0000" in laid
    assert "name=" + "x" * 120 + "_0000" in study.job.settings_of(trial, "x" * 300)


def test_a_mesh_that_does_not_go_with_the_ranks_is_refused(make_job: Callable[..., Job], tmp_path: Path) -> None:
    tune = {**TUNE, "space": {"run.mesh.model": {"choice": [1, 2, 3]}}}
    request = StudyRequest(make_job(tune=tune).file, tmp_path / "study", ranks=2)
    (said,) = refusal(request)
    assert "tune.space.run.mesh.model: with 3: run.mesh: model: 3 does not go with 2 ranks" in said
    assert begin_study(replace(request, ranks=6))[1]
