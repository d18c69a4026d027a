"""Which checkpoint is evaluated next: of a run, and of a job-dir that an evaluator follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.specs import EvalTimes
from hpc_train.evaluation.schedule import Checkpoint, EvaluationSchedule


def times(start_delay_secs: float = 0, throttle_secs: float = 0, every: bool = False) -> EvalTimes:
    return EvalTimes(start_delay_secs=start_delay_secs, throttle_secs=throttle_secs, eval_every_checkpoint=every)


def due_of(plan: EvaluationSchedule, now: float, above: int = -1) -> tuple[int, tuple[int, ...]] | None:
    """The step that is due now, if it is greater than `above`, and for which sets."""
    due = plan.due(now, lambda step: step > above)
    return None if due is None else (due.checkpoint.step, due.numbers)


def drain(plan: EvaluationSchedule, now: float) -> list[tuple[int, tuple[int, ...]]]:
    """All that is due at `now`, in turn."""
    found = []
    while (due := due_of(plan, now)) is not None:
        found.append(due)
    return found


@dataclass
class Seen:
    """What happened in a random run: evaluations by set as (time, step, newest checkpoint then)."""

    specs: list[EvalTimes]
    begun: list[list[tuple[float, int, int]]]
    saves: list[int] = field(default_factory=list)
    now: float = 0.0


seconds = st.integers(0, 30).map(float)
specs_of = st.lists(st.builds(times, seconds, seconds, st.booleans()), min_size=1, max_size=4)
events_of = st.lists(st.tuples(st.sampled_from(["save", "look"]), st.integers(0, 7)), max_size=60)


@given(specs_of, events_of, st.integers(0, 100))
def test_any_course_of_events(specs: list[EvalTimes], events: list[tuple[str, int]], began: int) -> None:
    plan, seen = EvaluationSchedule(specs, began), Seen(specs, [[] for _ in specs], now=began)
    for kind, secs in events:
        seen.now += secs
        if kind == "save":
            seen.saves.append(10 * (len(seen.saves) + 1))
            plan.saved(seen.saves[-1])
        elif (due := due_of(plan, seen.now)) is not None:
            step, numbers = due
            assert numbers
            assert step in seen.saves
            for number in numbers:
                seen.begun[number].append((seen.now, step, seen.saves[-1]))
    for spec, begun in zip(specs, seen.begun, strict=True):
        steps = [step for _, step, _ in begun]
        assert steps == sorted(set(steps)), "never one twice, never an older one"
        if spec.eval_every_checkpoint:
            assert steps == seen.saves[: len(steps)], "all of them, in order"
            continue
        assert all(step == newest for _, step, newest in begun), "the newest one"
        starts = [start for start, _, _ in begun]
        assert all(start >= began + spec.start_delay_secs for start in starts)
        assert all(b - a >= spec.throttle_secs for a, b in pairwise(starts))
    left = {
        step
        for spec, begun in zip(specs, seen.begun, strict=True)
        if spec.eval_every_checkpoint
        for step in seen.saves[len(begun) :]
    }
    assert plan.queued == left, "what is still to come must stay on the disk"
    late = seen.now + 1000
    drain(plan, late)
    assert plan.due(late + 1000) is None, "nothing is left"
    assert plan.queued == set()


def test_sets_that_are_due_together_share_a_checkpoint() -> None:
    plan = EvaluationSchedule([times(), times(every=True), times(start_delay_secs=5)], 0)
    plan.saved(10)
    assert drain(plan, 1) == [(10, (0, 1))]
    plan.saved(20)
    plan.saved(30)
    assert drain(plan, 6) == [(20, (1,)), (30, (0, 1, 2))], "older ones first, each loaded once"


def test_the_throttle_counts_from_the_start_of_an_evaluation() -> None:
    plan = EvaluationSchedule([times(throttle_secs=60)], 0)
    plan.saved(10)
    assert due_of(plan, 100) == (10, (0,))
    plan.saved(20)  # the evaluation took until 155
    assert plan.due(159.9) is None
    assert due_of(plan, 160) == (20, (0,))


def test_every_checkpoint_waits_for_nothing() -> None:
    plan = EvaluationSchedule([times(1000, 1000, every=True)], 0)
    plan.saved(10)
    plan.saved(20)
    assert drain(plan, 0) == [(10, (0,)), (20, (0,))]


def test_a_checkpoint_that_is_not_ready_comes_later() -> None:
    plan = EvaluationSchedule([times(every=True), times()], 0)
    plan.saved(10)
    plan.saved(20)
    assert due_of(plan, 1, above=20) is None
    assert due_of(plan, 1, above=10) == (20, (1,)), "the other set does not wait for it"
    assert due_of(plan, 1) == (10, (0,))
    assert due_of(plan, 1) == (20, (0,))
    assert plan.due(1) is None


def test_one_that_was_missed_comes_before_what_is_new() -> None:
    plan = EvaluationSchedule([times(every=True), times()], 0)
    for step in (20, 10, 20):
        plan.queue(0, step)
        plan.queue(1, step)
    plan.saved(30)
    assert plan.queued == {10, 20, 30}
    assert drain(plan, 1) == [(10, (0,)), (20, (0,)), (30, (0, 1))]


def test_the_last_checkpoint_is_left_to_the_end() -> None:
    plan = EvaluationSchedule([times(every=True), times()], 0)
    plan.saved(10)
    plan.saved(20)
    plan.leave_out(20)
    assert plan.queued == {10}
    assert drain(plan, 1000) == [(10, (0,))]


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_after_a_rollback_steps_that_come_again_are_evaluated_again(saves: int, looks: int, back: int) -> None:
    plan, back = EvaluationSchedule([times(every=True), times()], 0), 10 * min(back, saves)
    before: list[list[int]] = [[], []]
    for n in range(1, saves + 1):
        plan.saved(10 * n)
        for step, numbers in drain(plan, n) if n <= looks else []:
            for number in numbers:
                before[number].append(step)
    plan.went_back(back)
    assert all(step <= back for step in plan.queued)
    kept = drain(plan, 100)
    assert [step for step, _ in kept] == [step for step in range(10, back + 1, 10) if step not in before[0]]
    for n in range(back // 10 + 1, 9):
        plan.saved(10 * n)
        assert drain(plan, 100 + n) == [(10 * n, (0, 1))]


AT = {step: Checkpoint(step, 1000.0 + step) for step in range(0, 100, 10)}

LOOKS = 8


def looks_of(lives: dict[int, tuple[int, int]]) -> list[set[int]]:
    return [{step for step, (first, looks) in lives.items() if first <= k < first + looks} for k in range(LOOKS)]


trainings = st.dictionaries(
    st.sampled_from(sorted(AT)), st.tuples(st.integers(0, LOOKS - 1), st.integers(1, LOOKS))
).map(looks_of)
"""The steps of the checkpoints that are there, at one look after the other: what has gone does not come back."""


def follower(every: bool, done: Iterable[Checkpoint] = ()) -> EvaluationSchedule:
    """The schedule of an evaluator from outside, of one set."""
    return EvaluationSchedule([times(every=every)], 0, [done])


def next_of(plan: EvaluationSchedule) -> Checkpoint | None:
    due = plan.due(0)
    return None if due is None else due.checkpoint


def follow(
    looks: list[set[int]], every: bool, per_look: int, damaged: set[int] = frozenset()
) -> tuple[EvaluationSchedule, list[Checkpoint], list[Checkpoint]]:
    """The schedule at its end, what was evaluated, and what was skipped."""
    plan, evaluated, skipped = follower(every), [], []
    for steps in looks:
        skipped += plan.see(AT[step] for step in steps)
        for _ in range(per_look):
            if (chosen := next_of(plan)) is None:
                break
            assert chosen.step in steps
            if chosen.step in damaged:
                plan.pass_over(chosen)
            else:
                evaluated.append(chosen)
    return plan, evaluated, skipped


@given(trainings, st.booleans(), st.integers(0, 3), st.sets(st.sampled_from(sorted(AT))))
def test_none_is_evaluated_twice(looks: list[set[int]], every: bool, per_look: int, damaged: set[int]) -> None:
    _, evaluated, _ = follow(looks, every, per_look, damaged)
    assert len(set(evaluated)) == len(evaluated)
    assert not {c.step for c in evaluated} & damaged


@given(trainings, st.sets(st.sampled_from(sorted(AT))))
def test_a_follower_takes_the_newest_that_is_whole(looks: list[set[int]], damaged: set[int]) -> None:
    plan = follower(every=False)
    for steps in looks:
        assert plan.see(AT[step] for step in steps) == []
        while (chosen := next_of(plan)) is not None and chosen.step in damaged:
            plan.pass_over(chosen)
        if chosen is not None:
            assert chosen.step == max(steps - damaged)
        assert next_of(plan) is None, "of what is there, the newest alone"


@given(trainings, st.integers(0, 3))
def test_with_every_each_is_evaluated_in_turn_or_skipped_once(looks: list[set[int]], per_look: int) -> None:
    plan, evaluated, skipped = follow(looks, True, per_look)
    rest = []
    while (chosen := next_of(plan)) is not None:
        rest.append(chosen)
    assert [c.step for c in rest] == sorted(c.step for c in rest)
    seen = {AT[step] for steps in looks for step in steps}
    assert sorted([*evaluated, *rest, *skipped], key=lambda c: c.step) == sorted(seen, key=lambda c: c.step)


@given(trainings, st.booleans(), st.integers(0, 3))
def test_nothing_is_due_only_where_the_newest_is_evaluated(looks: list[set[int]], every: bool, per_look: int) -> None:
    plan, evaluated, _ = follow(looks, every, per_look)
    there = looks[-1]
    if next_of(plan) is None:
        wanted = there if every else {max(there)} if there else set()
        assert {AT[step] for step in wanted} <= set(evaluated)


def test_what_goes_while_it_is_evaluated_is_not_skipped() -> None:
    plan = follower(every=True)
    plan.see([AT[10], AT[20]])
    assert next_of(plan) == AT[10]
    assert plan.see([]) == [AT[20]]
    assert plan.see([]) == []


def test_what_an_earlier_run_has_evaluated_counts_for_its_set() -> None:
    plan = follower(False, [AT[20]])
    plan.see([AT[10], AT[20]])
    assert next_of(plan) is None
    again = replace(AT[20], time=5000.0)
    plan.see([again])
    assert next_of(plan) == again, "the job-dir was trained anew"
    plan = EvaluationSchedule([times(), times()], 0, [[AT[20]], [AT[10]]])
    plan.see([AT[10], AT[20]])
    assert drain(plan, 0) == [(20, (1,))]


@pytest.mark.parametrize("every", [False, True])
def test_the_last_is_evaluated_once_more_with_averaged_weights(every: bool) -> None:
    plan = follower(every, [AT[20]])
    last = replace(AT[20], averaged=True)
    plan.see([last])
    assert next_of(plan) == last
    assert next_of(plan) is None
    plan.see([AT[20]])  # training was made longer, so that it is the last no more
    assert next_of(plan) is None
