"""The checkpoints that forks begin with: put in place whole or not at all, and kept for as long as a fork may come."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

from hpc_train.checkpoint import manager as module
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.tuning.execution.forks import CheckpointKeeper, ParentGoneError, put_in_place
from hpc_train.tuning.search.population_rule import PopulationRule
from hpc_train.tuning.search.state import Trial
from hpc_train.tuning.search.study import Leaving, Study
from tests.studies import DRIVER, SPACE, judged, left, opened, study_in, suggested

STEPS = (9, 18, 27)


def save(study: Study, trial: Trial, *steps: int) -> None:
    for step in steps:
        variables = {"dense/kernel": np.full(3, trial.number, np.float32)}
        snapshot = Snapshot(variables, {}, DataProgress(step, step, ((0, 1),)), None, 1, float(step))
        manager_of(study, trial).save(snapshot)


def manager_of(study: Study, trial: Trial) -> CheckpointManager:
    return CheckpointManager(study.folder.job_dir(trial).checkpoints_path, Retention(0))


def steps_of(study: Study, trial: Trial) -> list[int]:
    return study.folder.job_dir(trial).checkpoints()


@pytest.fixture
def study(tmp_path: Path) -> Study:
    folder = study_in(tmp_path / "study", SPACE, "population: {size: 2, every_steps: 9, quantile: 0.5}")
    job_file = folder.path / "code" / "job.yaml"
    job_file.write_text(f"run: {{keep_checkpoint_max: 1}}\n{job_file.read_text()}")
    return opened(folder)


def asked(study: Study) -> Trial:
    trial = study.ask(DRIVER).trial
    assert trial is not None
    return trial


@pytest.fixture
def fork(study: Study) -> Trial:
    """Trial 2, of trial 0 at step 9, in place of trial 1."""
    first, second = asked(study), asked(study)
    save(study, first, 9, 12)
    save(study, second, 9)
    study.judge(first, 0, 9, 0.5)
    study.judge(second, 0, 9, 0.4)
    study.leave(second, DRIVER, Leaving("stopped", 9, 0.4))
    return asked(study)


def test_a_fork_begins_with_its_parents_checkpoint(study: Study, fork: Trial) -> None:
    put_in_place(study.folder, fork)
    assert steps_of(study, fork) == [9]
    assert manager_of(study, fork).find_whole().step == 9
    assert manager_of(study, fork).load(9).model["dense/kernel"].tolist() == [0, 0, 0]
    save(study, fork, 18)
    shutil.rmtree(manager_of(study, fork).path(9))
    put_in_place(study.folder, fork)
    assert steps_of(study, fork) == [18], "one that has begun goes on from its own"
    put_in_place(study.folder, study.state.trials[0])
    assert steps_of(study, study.state.trials[0]) == [9, 12]


@pytest.mark.parametrize("step", ["link_new", "sync_to_disk", "rename"])
def test_what_cannot_be_put_in_place_whole_is_not_there(
    study: Study, fork: Trial, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, step, full)
    with pytest.raises(OSError, match="No space left"):
        put_in_place(study.folder, fork)
    monkeypatch.undo()
    assert steps_of(study, fork) == []
    assert not list(manager_of(study, fork).path(9).parent.iterdir())
    put_in_place(study.folder, fork)
    assert manager_of(study, fork).find_whole().step == 9


def test_a_driver_that_was_killed_meanwhile_leaves_nothing_that_counts(
    study: Study, fork: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "rename", killed)
    monkeypatch.setattr(module, "remove_tree", lambda path: None)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(study.folder, fork)
    monkeypatch.undo()
    assert steps_of(study, fork) == []
    put_in_place(study.folder, fork)
    manager_of(study, fork).clean()
    assert [path.name for path in manager_of(study, fork).path(9).parent.iterdir()] == ["step-00000009"]


def test_a_parents_checkpoint_that_is_gone_is_told(study: Study, fork: Trial) -> None:
    shutil.rmtree(manager_of(study, study.state.trials[0]).path(9))
    with pytest.raises(ParentGoneError, match=r"it is to go on from 0000 at step 9, and there is no .*step-00000009"):
        put_in_place(study.folder, fork)
    assert steps_of(study, fork) == []


def test_checkpoints_stay_until_no_fork_can_begin_with_them(study: Study, fork: Trial) -> None:
    assert isinstance(study.rule, PopulationRule)
    keeper, (first, second, _) = CheckpointKeeper(study, study.rule), study.state.trials
    keeper.thin_out()
    assert steps_of(study, first) == [9, 12], "the fork has not come further than that"
    assert steps_of(study, second) == [9], "the newest, as asked for"
    put_in_place(study.folder, fork)
    save(study, first, *STEPS)
    study.judge(first, 1, 18, 0.5)
    study.leave(first, DRIVER, Leaving("completed", 27, 0.5))
    keeper.thin_out()
    assert steps_of(study, first) == [9, 18, 27]
    save(study, fork, 18)
    study.judge(fork, 1, 18, 0.9)
    keeper.thin_out()
    assert steps_of(study, first) == [18, 27]
    assert steps_of(study, fork) == [18]
    save(study, fork, 27)
    study.leave(fork, DRIVER, Leaving("completed", 27, 0.9))
    keeper.thin_out()
    assert [steps_of(study, trial) for trial in study.state.trials] == [[27], [9], [27]]


def test_the_checkpoint_of_a_parent_that_is_replaced_before_its_fork_begins_stays(study: Study) -> None:
    assert isinstance(study.rule, PopulationRule)
    keeper, first, second = CheckpointKeeper(study, study.rule), asked(study), asked(study)
    save(study, first, 9, 18)
    save(study, second, 9)
    for trial, value in ((first, 0.5), (second, 0.4)):
        study.judge(trial, 0, 9, value)
    study.leave(second, DRIVER, Leaving("stopped", 9, 0.4))
    other = suggested(2)  # it comes to the second rung, and is better there
    for decision in (other, judged(2, 1, 0.9, step=18), judged(0, 1, 0.1, "stopped", step=18, parent=2)):
        study.state.hear(decision)
    study.state.hear(left(0, "stopped", step=18))
    keeper.thin_out()
    assert steps_of(study, first) == [9, 18]
    study.state.hear(suggested(3, source="fork", lineage=study.state.forks_to_come()[0]))
    keeper.thin_out()
    fork = study.state.trials[3]
    put_in_place(study.folder, fork)
    assert steps_of(study, fork) == [9]
