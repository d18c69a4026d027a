"""What a separate evaluator evaluates next, and when it ends."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.evaluation.standalone import job_watcher
from hpc_train.evaluation.standalone.checkpoint_queue import Checkpoint, CheckpointQueue
from hpc_train.evaluation.standalone.chief import evaluated_in
from hpc_train.evaluation.standalone.job_watcher import JobWatcher
from hpc_train.jobdir.job_dir import JobDir

AT = {step: Checkpoint(step, 1000.0 + step) for step in range(0, 100, 10)}

LOOKS = 8


def looks_of(lives: dict[int, tuple[int, int]]) -> list[set[int]]:
    return [{step for step, (first, looks) in lives.items() if first <= k < first + looks} for k in range(LOOKS)]


trainings = st.dictionaries(
    st.sampled_from(sorted(AT)), st.tuples(st.integers(0, LOOKS - 1), st.integers(1, LOOKS))
).map(looks_of)
"""The steps of the checkpoints that are there, at one look after the other: what has gone does not come back."""


def follow(looks: list[set[int]], every: bool, per_look: int, damaged: set[int] = frozenset()) -> tuple[Any, ...]:
    """The follower at its end, what it evaluated, and what it told as skipped."""
    queue, evaluated, skipped = CheckpointQueue(every), [], []
    for steps in looks:
        skipped += queue.see(AT[step] for step in steps)
        for _ in range(per_look):
            if (chosen := queue.next()) is None:
                break
            assert chosen.step in steps
            if chosen.step in damaged:
                queue.pass_over(chosen)
            else:
                queue.evaluated(chosen)
                evaluated.append(chosen)
    return queue, evaluated, skipped


@given(trainings, st.booleans(), st.integers(0, 3), st.sets(st.sampled_from(sorted(AT))))
def test_none_is_evaluated_twice(looks: list[set[int]], every: bool, per_look: int, damaged: set[int]) -> None:
    _, evaluated, _ = follow(looks, every, per_look, damaged)
    assert len(set(evaluated)) == len(evaluated)
    assert not {c.step for c in evaluated} & damaged


@given(trainings, st.sets(st.sampled_from(sorted(AT))))
def test_it_takes_the_newest_that_is_whole(looks: list[set[int]], damaged: set[int]) -> None:
    queue = CheckpointQueue(every=False)
    for steps in looks:
        assert queue.see(AT[step] for step in steps) == []
        while (chosen := queue.next()) is not None and chosen.step in damaged:
            queue.pass_over(chosen)
        if chosen is not None:
            assert chosen.step == max(steps - damaged)
            queue.evaluated(chosen)
        assert queue.next() is None, "of what is there, the newest alone"


@given(trainings, st.integers(0, 3))
def test_with_every_each_is_evaluated_in_turn_or_told_as_skipped_once(looks: list[set[int]], per_look: int) -> None:
    queue, evaluated, skipped = follow(looks, True, per_look)
    rest = []
    while (chosen := queue.next()) is not None:
        rest.append(chosen)
        queue.evaluated(chosen)
    assert [c.step for c in rest] == sorted(c.step for c in rest)
    seen = {AT[step] for steps in looks for step in steps}
    assert sorted([*evaluated, *rest, *skipped], key=lambda c: c.step) == sorted(seen, key=lambda c: c.step)


@given(trainings, st.booleans(), st.integers(0, 3), st.sampled_from(["ended", "lost"]))
def test_it_is_over_only_when_training_is_and_the_newest_is_evaluated(
    looks: list[set[int]], every: bool, per_look: int, end: Any
) -> None:
    queue, evaluated, _ = follow(looks, every, per_look)
    for training in ("awaited", "running", "away"):
        assert not queue.is_over(training)
    there = looks[-1]
    if queue.is_over(end):
        wanted = there if every else {max(there)} if there else set()
        assert {AT[step] for step in wanted} <= set(evaluated)
    else:
        assert queue.next() is not None


def test_what_goes_while_it_is_evaluated_is_not_told_as_skipped() -> None:
    queue = CheckpointQueue(every=True)
    queue.see([AT[10], AT[20]])
    queue.take(AT[10])
    assert queue.see([]) == [AT[20]]
    queue.evaluated(AT[10])
    assert queue.see([]) == []


def test_what_an_earlier_run_has_evaluated_counts() -> None:
    queue = CheckpointQueue(False, [AT[20]])
    queue.see([AT[10], AT[20]])
    assert queue.next() is None
    again = replace(AT[20], time=5000.0)
    queue.see([again])
    assert queue.next() == again, "the job-dir was trained anew"


@pytest.mark.parametrize("every", [False, True])
def test_the_last_is_evaluated_once_more_with_averaged_weights(every: bool) -> None:
    queue = CheckpointQueue(every, [AT[20]])
    last = replace(AT[20], averaged=True)
    queue.see([last])
    assert queue.next() == last
    queue.evaluated(last)
    assert queue.next() is None
    queue.see([AT[20]])  # training was made longer, so that it is the last no more
    assert queue.next() is None


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


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def standing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any = None, lock: bool = True, **status: Any
) -> list[Any]:
    """How training stands now, after a minute and after three, where its lock is not touched; and how often asked."""
    clock, asked = Clock(), []
    monkeypatch.setattr(job_watcher, "time", clock)
    (tmp_path / "status.json").write_text(json.dumps(status))
    if lock:
        (tmp_path / "lock.json").write_text("{}")

    def ask(_: Path) -> Any:
        asked.append(clock.now)
        return answer

    job, found = JobWatcher(tmp_path, print, ask), []
    for secs in (0, 60, 120):
        clock.now += secs
        found.append(job.look()[0])
    return [*found, len(asked)]


def test_the_status_tells_how_training_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def status_of(**status: Any) -> list[Any]:
        return standing(tmp_path, monkeypatch, **status)

    assert status_of(state="succeeded") == ["ended", "ended", "ended", 0]
    assert status_of(state="cancelled") == ["ended", "ended", "ended", 0]
    assert status_of(state="stopped", job_id="1") == ["away", "away", "away", 2]
    assert status_of(state="requeued", job_id="1") == ["away", "away", "away", 2]
    assert status_of(state="queued", job_id="1") == ["awaited", "awaited", "awaited", 2]
    assert status_of() == ["awaited", "awaited", "awaited", 0]
    assert JobWatcher(tmp_path / "none", print, lambda _: None).look() == ("awaited", [])


def test_a_failed_job_has_ended_once_its_chief_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert standing(tmp_path, monkeypatch, state="failed") == ["running", "ended", "ended", 0]
    (tmp_path / "lock.json").unlink()
    assert standing(tmp_path, monkeypatch, lock=False, state="failed") == ["ended", "ended", "ended", 0]


def test_a_job_in_a_queue_is_asked_after_only_when_its_lock_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "lost", "its queue does not know it"
    assert standing(tmp_path, monkeypatch, lost, state="running", job_id="7") == ["running", "lost", "lost", 2]
    assert standing(tmp_path, monkeypatch, None, state="running", job_id="7") == ["running", "running", "running", 2]


def test_a_job_of_another_machine_is_lost_after_a_long_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert standing(tmp_path, monkeypatch, state="running", host="far") == ["running", "running", "lost", 3]


def test_a_lock_that_is_touched_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(job_watcher, "time", clock)
    (tmp_path / "status.json").write_text(json.dumps({"state": "running", "job_id": "7"}))
    (tmp_path / "lock.json").write_text("{}")
    job = JobWatcher(tmp_path, print, lambda _: pytest.fail("there is no need to ask"))
    for beat in range(10):
        os.utime(tmp_path / "lock.json", ns=(beat, time.time_ns() + beat))
        clock.now += 20
        assert job.look()[0] == "running"
