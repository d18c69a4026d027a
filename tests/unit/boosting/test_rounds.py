"""Rounds that go on from a checkpoint: what an earlier run has not come to evaluate. And metrics that trees lack."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.boosting import trainer
from hpc_train.boosting.rounds import Rounds
from hpc_train.config.early_stopping import StopIfNoDecrease
from hpc_train.distributed.world import World
from hpc_train.errors import JobEndedError, UserError


@pytest.mark.parametrize(
    ("step", "every", "evaluated"),
    [
        (50, 25, [50]),  # killed between the checkpoint and its evaluation
        (25, 25, []),
        (60, 25, []),  # saved by a signal, and evaluated by no run that is not stopped
        (60, None, [60]),
        (100, 25, []),  # the last one, which the end evaluates
        (None, 25, []),
    ],
)
def test_an_evaluation_that_was_missed_is_made_up_for(
    step: int | None, every: int | None, evaluated: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "step": 25, "time": 1.0, "loss": 0.5}) + "\n")
    config, found = SimpleNamespace(save_checkpoints_steps=every), []
    job: Any = SimpleNamespace(job_dir=tmp_path, config=config, eval_specs=[SimpleNamespace(kind="eval")])
    run: Any = SimpleNamespace(restored_step=step, decision=None)
    none: Any = None
    rounds = Rounds(World.alone(), job, run, none, none, none, None)
    monkeypatch.setattr(rounds, "_evaluate", found.append)
    rounds._catch_up(step or 0, 100)
    assert found == evaluated


def test_a_job_whose_folder_another_one_has_taken_over_writes_no_more(tmp_path: Path) -> None:
    none: Any = None
    chief: Any = SimpleNamespace(lock=SimpleNamespace(taken_by="job 7 on node b"))  # without anything to write with
    job: Any = SimpleNamespace(job_dir=tmp_path)
    run: Any = SimpleNamespace(restored_step=None, decision=None)
    watchdog: Any = SimpleNamespace(at=lambda *where: None)
    with pytest.raises(JobEndedError, match=r"another job has taken over this job-dir .*: job 7 on node b; this one"):
        Rounds(World.alone(), job, run, none, none, watchdog, chief)._save(5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("best", "rule", "said"),
    [
        ("acuracy", "loss", "run.best_metric: 'acuracy' is no metric of this model; did you mean `accuracy`?"),
        ("auc", "los", "early stopping, stop_if_no_decrease: 'los' is no metric of this model; did you mean `loss`?"),
    ],
)
def test_metrics_that_are_not_there_are_refused(best: str, rule: str, said: str) -> None:
    rules = [StopIfNoDecrease(metric_name=rule, max_steps_without_decrease=5)]
    job: Any = SimpleNamespace(
        config=SimpleNamespace(best_metric=best),
        train_spec=SimpleNamespace(early_stopping=rules),
        eval_specs=[SimpleNamespace(kind="eval")],
    )
    with pytest.raises(UserError) as refused:
        trainer._check_metrics(job, ["loss", "accuracy", "auc"], None)
    assert str(refused.value).startswith(said)
