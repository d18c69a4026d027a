"""What a separate evaluator's chief does about checkpoints that go, change or are damaged before it has read them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.errors import UserError
from hpc_train.evaluation.schedule import Checkpoint
from hpc_train.evaluation.standalone.chief import EvaluationRequest, EvaluatorChief, EvaluatorCommand, evaluated_in
from hpc_train.jobdir.job_dir import JobDir


class AnyModel:
    def fit(self, snapshot: Snapshot, where: str) -> Snapshot:
        return snapshot


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manager = CheckpointManager(folder / "checkpoints", Retention(0))

    def save(self, step: int, time: float | None = None) -> None:
        variables = {"kernel": np.ones(4, np.float32)}
        taken = 1000.0 + step if time is None else time
        self.manager.save(Snapshot(variables, {}, DataProgress(step), None, 1, taken, {}, None, None))

    def remove(self, step: int) -> None:
        self.manager.path(step).rename(self.folder / f"gone-{step}")

    def damage(self, step: int) -> None:
        path = self.manager.path(step) / "state.h5"
        path.write_bytes(path.read_bytes()[:-1] + b"!")

    def status(self, **fields: Any) -> None:
        (self.folder / "status.json").write_text(json.dumps(fields))

    def evaluator(self, **options: Any) -> EvaluatorChief:
        request = EvaluationRequest(self.folder, self.folder.parent / "out", **{"follow": True, **options})
        return EvaluatorChief(request, lambda _: None, ExitStack())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "run").mkdir()
    made = Job(tmp_path / "run")
    made.status(state="succeeded", step=20)
    return made


def load(chief: EvaluatorChief, command: EvaluatorCommand) -> Snapshot | None:
    return chief.load(command, AnyModel())  # type: ignore[arg-type]


def test_the_newest_is_read(job: Job) -> None:
    job.save(10)
    job.save(20)
    chief = job.evaluator()
    command = chief.command()
    assert (command.step, command.time) == (20, 1020.0)
    assert load(chief, command) is not None


def test_one_that_goes_while_it_is_opened_is_passed_over_in_silence(job: Job, logged: list[str]) -> None:
    job.save(10)
    job.save(20)
    chief = job.evaluator()
    command = chief.command()
    job.remove(20)
    assert load(chief, command) is None
    assert chief.command().step == 10
    assert not logged


def test_one_that_is_replaced_while_it_is_opened_is_taken_as_the_new_one(job: Job) -> None:
    job.save(20)
    chief = job.evaluator()
    command = chief.command()
    job.save(20, time=5000.0)
    assert load(chief, command) is None
    assert chief.command().checkpoint == Checkpoint(20, 5000.0)


def test_damaged_ones_are_told_once(job: Job, logged: list[str]) -> None:
    for step in (5, 10, 20):
        job.save(step)
    (job.manager.path(10) / "manifest.json").write_text("{}")
    job.damage(20)
    chief = job.evaluator()
    assert load(chief, chief.command()) is None
    assert chief.command().step == 5
    assert chief.command() == EvaluatorCommand(0), "training has ended, and nothing is left"
    told = "\n".join(logged)
    for step in (10, 20):
        assert told.count(f"the checkpoint of step {step} is damaged and passed over") == 1


def test_many_that_are_damaged_or_gone_are_one_line(job: Job, logged: list[str]) -> None:
    for step in range(10, 100, 10):
        job.save(step)
        (job.manager.path(step) / "manifest.json").write_text("{}")
    job.save(100)
    chief = job.evaluator(every_checkpoint=True)
    assert chief.command().step == 100
    (line,) = logged
    assert line.startswith("9 checkpoints are damaged and passed over: step 10: ")
    assert "; step 50: " in line and "step 60" not in line and line.endswith(" and 4 more")


def test_without_follow_it_is_an_error_that_none_is_whole(job: Job) -> None:
    job.save(20)
    job.damage(20)
    chief = job.evaluator(follow=False)
    assert load(chief, chief.command()) is None
    with pytest.raises(UserError, match="no checkpoint is whole"):
        chief.command()
    chief = job.evaluator(follow=False, step=20)
    assert load(chief, chief.command()) is None
    with pytest.raises(UserError, match="the checkpoint of step 20 is damaged"):
        chief.command()


def test_a_stop_and_a_wait_are_told_once(job: Job, logged: list[str]) -> None:
    job.status(state="requeued", step=30, job_id="5")
    chief = job.evaluator()
    for _ in range(3):
        assert chief.command() == EvaluatorCommand()
    assert logged == ["training is requeued at step 30; waiting for it to go on"]


def test_it_ends_where_training_has_left_no_checkpoint(job: Job, logged: list[str]) -> None:
    job.status(state="failed", error={"rank": 1, "message": "ValueError: no such data"})
    assert job.evaluator().command() == EvaluatorCommand(0)
    assert "training has ended (failed: ValueError: no such data); evaluated 0 checkpoints" in "\n".join(logged)


def test_with_every_one_that_goes_while_it_is_opened_is_skipped_with_one_line(job: Job, logged: list[str]) -> None:
    job.save(10)
    job.save(20)
    chief = job.evaluator(every_checkpoint=True)
    command = chief.command()
    assert command.step == 10
    job.remove(10)
    assert load(chief, command) is None
    assert chief.command().step == 20
    assert logged == ["skipped the checkpoint of step 10: it was removed before its turn"]


def test_results_are_read_back_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    out = JobDir(tmp_path)
    assert evaluated_in(out) == {}
    whole = [
        {"kind": "eval", "step": 10, "time": 1.0, "checkpoint_time": 1.5, "loss": None},
        {"kind": "eval_b", "step": 20, "time": 2.0, "checkpoint_time": 2.5, "last": True},
        {"kind": "eval", "step": 30, "time": 3.0, "loss": 1.0},
        {"kind": "eval", "step": 30, "time": 3.0, "checkpoint_time": "now"},
        ["eval"],
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*map(json.dumps, whole), '{"kind": "eval", "st']))
    assert evaluated_in(out) == {"eval": [Checkpoint(10, 1.5)], "eval_b": [Checkpoint(20, 2.5, True)]}
