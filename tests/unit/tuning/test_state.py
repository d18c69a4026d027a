"""What decisions amount to."""

from __future__ import annotations

import pytest

from hpc_train.tuning.search.decisions import Changed, Decision, Halted
from tests.studies import judged, left, state_of, suggested, taken

OTHER = "f" * 16


def test_the_life_of_a_trial() -> None:
    state = state_of(suggested(0, point={"params.a": 1}, time=10.0))
    (trial,) = state.trials
    assert (trial.name, trial.state, trial.runs, trial.point) == ("0000", "running", 1, {"params.a": 1})
    state.hear(judged(0, 0, 0.5, "paused"))
    assert (trial.state, trial.verdict) == ("running", trial.judged[0]), "until its driver says that it has left"
    state.hear(left(0, "paused", step=3, value=0.5, time=15.0))
    assert (trial.state, trial.step, trial.value) == ("paused", 3, 0.5)
    state.hear(taken(0, driver=OTHER, time=20.0))
    assert (trial.state, trial.driver, trial.runs, trial.verdict, trial.to_the_end) == (
        "running",
        OTHER,
        2,
        None,
        False,
    )
    state.hear(left(0, "waiting", step=3, value=0.5, time=21.0))
    assert trial.crashes == 0
    state.hear(taken(0, to_the_end=True, time=30.0))
    state.hear(left(0, "completed", step=9, value=0.9, time=31.0))
    assert (trial.to_the_end, trial.crashes, trial.runs) == (True, 0, 3)
    assert trial.periods == [(10.0, 15.0), (20.0, 21.0), (30.0, 31.0)]
    assert state.secs(99.0) == 7.0


def test_crashes_count_until_a_run_comes_further() -> None:
    state = state_of(suggested(0))
    for step, crashed, crashes in [(0, True, 1), (0, False, 1), (0, True, 2), (5, True, 0), (5, True, 1)]:
        state.hear(left(0, "waiting", step=step, crashed=crashed))
        state.hear(taken(0))
        assert state.trials[0].crashes == crashes


def test_time_counts_once_however_many_trials_run() -> None:
    state = state_of(suggested(0, time=0.0), suggested(1, time=5.0), left(0, "completed", time=10.0))
    assert state.secs(12.0) == 12.0
    state.hear(left(1, "completed", time=20.0))
    state.hear(suggested(2, time=100.0))
    assert state.secs(101.0) == 21.0


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 1)])
def test_the_best_trial_is_the_first_with_the_best_value(mode: str, best: int) -> None:
    state = state_of(*(suggested(number) for number in range(5)), mode=mode)
    assert state.best is None
    for number, value in enumerate((0.5, 0.1, 0.9, 0.9, None)):
        state.hear(left(number, "paused" if number % 2 else "completed", value=value))
    assert state.best is state.trials[best]


def test_what_users_ask_for() -> None:
    state = state_of(Changed(time=0.0, max_trials=7), Halted(time=1.0, halted=True, why="full"))
    assert (state.max_trials, state.max_hours, state.halted) == (7, None, "full")
    state.hear(Changed(time=0.0, max_hours=2.0))
    state.hear(Halted(time=1.0, halted=False))
    assert (state.max_trials, state.max_hours, state.halted) == (7, 2.0, None)


@pytest.mark.parametrize("decision", [suggested(0), suggested(2), taken(1), judged(1, 0, None), left(3, "failed")])
def test_what_cannot_come_after_those_before_is_refused(decision: Decision) -> None:
    state = state_of(suggested(0))
    with pytest.raises(ValueError, match="trial"):
        state.hear(decision)
    assert len(state.trials) == 1
    assert state.trials[0].runs == 1
