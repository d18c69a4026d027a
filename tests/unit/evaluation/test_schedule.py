"""Which checkpoint is evaluated next."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.specs import EvalTimes
from hpc_train.evaluation.schedule import EvaluationSchedule


def times(start_delay_secs: float = 0, throttle_secs: float = 0, every: bool = False) -> EvalTimes:
    return EvalTimes(start_delay_secs=start_delay_secs, throttle_secs=throttle_secs, eval_every_checkpoint=every)


def drain(plan: EvaluationSchedule, now: float) -> list[tuple[int, tuple[int, ...]]]:
    """All that is due at `now`, in turn."""
    found = []
    while (due := plan.due(now)) is not None:
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
        elif (due := plan.due(seen.now)) is not None:
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
    assert plan.due(100) == (10, (0,))
    plan.saved(20)  # the evaluation took until 155
    assert plan.due(159.9) is None
    assert plan.due(160) == (20, (0,))


def test_every_checkpoint_waits_for_nothing() -> None:
    plan = EvaluationSchedule([times(1000, 1000, every=True)], 0)
    plan.saved(10)
    plan.saved(20)
    assert drain(plan, 0) == [(10, (0,)), (20, (0,))]


def test_a_checkpoint_that_is_not_ready_comes_later() -> None:
    plan = EvaluationSchedule([times(every=True), times()], 0)
    plan.saved(10)
    plan.saved(20)
    assert plan.due(1, lambda step: False) is None
    assert plan.due(1, lambda step: step > 10) == (20, (1,)), "the other set does not wait for it"
    assert plan.due(1) == (10, (0,))
    assert plan.due(1) == (20, (0,))
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
