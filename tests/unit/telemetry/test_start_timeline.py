"""The phases of a start follow each other without gaps, and a process may start more than one job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from hpc_train.telemetry import start_timeline
from hpc_train.telemetry.start_timeline import LAUNCHED_VARIABLE, StartTimeline


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(start_timeline.time, "time", made.time)
    return made


def test_phases_add_up_in_their_order_and_one_may_go_on(clock: Clock) -> None:
    start = StartTimeline(began=999.0, launched=996.5)
    for secs, phase in ((0.5, "data"), (1.0, "TensorFlow"), (2.0, "data"), (0.25, "first step")):
        clock.now += secs
        start.begin(phase)
    clock.now += 4.0
    assert start.end() == {"launch": 2.5, "Python": 1.5, "data": 1.25, "TensorFlow": 2.0, "first step": 4.0}
    assert start.end() is None


def test_a_phase_in_the_midst_of_another_counts_apart(clock: Clock) -> None:
    start = StartTimeline(began=1000.0)
    start.begin("model")
    for _ in range(2):
        clock.now += 1.0
        with start.within("trace"):
            clock.now += 0.5
    clock.now += 4.0
    assert start.end() == {"Python": 0.0, "model": 6.0, "trace": 1.0}
    with start.within("trace"):
        clock.now += 1.0
    assert start.end() is None, "a later trace begins no start"


def test_the_next_job_of_a_process_begins_anew(clock: Clock) -> None:
    start = StartTimeline(began=900.0)
    assert start.end() == {"Python": 100.0}
    clock.now += 50.0
    start.begin("data")
    clock.now += 1.0
    start.begin("model")
    clock.now += 2.0
    assert start.end() == {"data": 1.0, "model": 2.0}


@pytest.mark.parametrize("launched", [None, 2000.0])
def test_a_launcher_that_begins_after_its_rank_is_none(clock: Clock, launched: float | None) -> None:
    assert StartTimeline(began=1000.0, launched=launched).end() == {"Python": 0.0}


@pytest.mark.parametrize(("told", "counts"), [("{then}", True), ("", False), ("nan", False), ("yesterday", False)])
def test_a_process_knows_when_it_and_its_launcher_began(told: str, counts: bool) -> None:
    code = (
        "import json, os; from hpc_train.telemetry.start_timeline import LAUNCHED_VARIABLE, start_timeline\n"
        "assert LAUNCHED_VARIABLE not in os.environ, 'what this process starts would have it, too'\n"
        "print(json.dumps(start_timeline.end()))"
    )
    before = time.time()
    env = {**os.environ, LAUNCHED_VARIABLE: told.format(then=before - 100)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    phases = json.loads(done.stdout)
    assert list(phases) == (["launch"] if counts else []) + ["Python"]
    assert 0 < phases["Python"] < time.time() - before + 0.02  # a process's start is known to a hundredth
    assert not counts or phases["launch"] > 99
