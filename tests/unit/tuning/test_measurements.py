"""What a trial has measured, read from its job-dir."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.tune.section import Goal
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.tuning.search.measurements import Measurements, Watch
from tests.job_dirs import record, write_job

GOAL = Goal(metric="accuracy", mode="max")


def job_dir(path: Path, *records: dict[str, Any]) -> JobDir:
    return JobDir(write_job(path, records))


def test_the_goal_by_step(tmp_path: Path) -> None:
    found = job_dir(
        tmp_path,
        record("start", 0, 1.0),
        record("train", 1, 1.0, accuracy=9.0),
        record("eval", 20, 2.0, loss=0.1, accuracy=0.7),
        record("eval", 10, 2.0, loss=0.2, accuracy=0.8),
        record("eval", 30, 2.0, loss=0.2, accuracy=None),
        record("eval", 40, 2.0, loss=0.3),
        record("eval_other", 10, 2.0, accuracy=0.1),
    )
    measured = Measurements.of(found, GOAL)
    assert measured.values == ((10, 0.8), (20, 0.7), (30, None), (40, None))
    assert (measured.best(), measured.best_step(), measured.best(9)) == (0.8, 10, None)
    assert [measured.at(step) for step in (1, 10, 11, 40, 41)] == [10, 10, 20, 40, None]
    other = Measurements.of(found, Goal(metric="accuracy", mode="max", eval="other"))
    assert other.values == ((10, 0.1),)
    loss = Measurements.of(found, Goal(metric="loss", mode="min"))
    assert (loss.best(), loss.best_step()) == (0.1, 20)


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "null", '"x"', "[]", "true"])
def test_what_is_no_finite_number_is_none(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"kind": "eval", "step": 1, "time": 1.0, "accuracy": {wrong}}}\n')
    measured = Measurements.of(JobDir(tmp_path), GOAL)
    assert measured.best() is None
    assert measured.best_step() is None
    assert all(value is None for _, value in measured.values)


def test_what_a_later_run_takes_back_does_not_count(tmp_path: Path) -> None:
    """A trial that went on from step 10 was never at step 20 in that way."""
    records = [record("eval", step, 1.0, accuracy=step / 100) for step in (10, 20)]
    found = job_dir(tmp_path, *records, record("start", 10, 2.0), record("eval", 15, 2.0, accuracy=0.01))
    assert Measurements.of(found, GOAL).values == ((10, 0.1), (15, 0.01))


def test_without_a_job_dir_there_is_nothing(tmp_path: Path) -> None:
    assert Measurements.of(JobDir(tmp_path / "none"), GOAL).values == ()
    assert Watch(JobDir(tmp_path / "none"), GOAL).look().values == ()


def test_a_watch_sees_what_is_new(tmp_path: Path) -> None:
    found = job_dir(tmp_path, record("eval", 10, 1.0, accuracy=0.5))
    watch = Watch(found, GOAL)
    first = watch.look()
    assert first.best() == 0.5
    assert watch.look() is first, "nothing is read again"
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record("eval", 20, 1.0, accuracy=0.6)) + "\n")
    assert watch.look().best() == 0.6


@given(st.lists(st.none() | st.floats(-9, 9), max_size=6), st.sampled_from(["min", "max"]), st.integers(0, 6))
def test_the_best_value(values: list[float | None], mode: Any, until: int) -> None:
    measured = Measurements(Goal(metric="a", mode=mode), tuple(enumerate(values)))
    choose = max if mode == "max" else min
    numbers = [value for value in values if value is not None]
    assert measured.best() == choose(numbers, default=None)
    assert measured.best(until) == choose((v for v in values[: until + 1] if v is not None), default=None)
    assert measured.best_step() == (values.index(choose(numbers)) if numbers else None)
