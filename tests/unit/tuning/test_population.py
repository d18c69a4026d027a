"""A population of trials under its rule, whatever the order in which they come to their rungs."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.tune.section import Goal, TuneSection
from hpc_train.tuning.search.measurements import Measurements
from hpc_train.tuning.search.population_rule import PopulationRule
from hpc_train.tuning.search.samplers import sampler_of
from hpc_train.tuning.search.state import StudyState, Trial
from tests.studies import judged, left, state_of, suggested, taken

RUNGS = (10, 20, 30, 40)
GOAL = Goal(metric="accuracy", mode="max")


class Members:
    """The trials of a population in `slots` slots, each of which comes to its next rung when `come` is called.

    Args:
        divergence: How likely it is that one ends in place of that.
    """

    def __init__(
        self,
        size: int,
        slots: int,
        quantile: float,
        max_trials: int | None,
        chance: random.Random,
        divergence: float = 0.0,
    ) -> None:
        self.divergence = divergence
        given = {"population": {"size": size, "quantile": quantile}, "max_trials": max_trials}
        space = {"params.rate": {"log": [0.1, 1]}}
        self.tune = TuneSection(goal=GOAL, space=space, **given)
        assert self.tune.population is not None
        self.population, self.slots, self.chance = self.tune.population, slots, chance
        self.rule = PopulationRule(self.population, RUNGS, GOAL, 0)
        self.sampler = sampler_of(self.tune)
        self.state = StudyState(GOAL, max_trials, None)
        self.there: dict[int, set[int]] = {}

    def thin_out(self) -> None:
        """Checkpoints at rungs that are not needed go, and must never be needed again."""
        needed = self.rule.needed(self.state)
        for trial in self.state.trials:
            there = self.there.setdefault(trial.number, set())
            there &= needed.get(trial.number, set())

    def running(self) -> list[Trial]:
        return list(self.state.of("running"))

    def fill(self) -> None:
        """As Study does for a driver."""
        while len(self.running()) < self.slots:
            self.thin_out()
            if (overtaken := self.rule.overtaken(self.state)) is not None:
                trial, rung, (verdict, why, parent) = overtaken
                assert trial.state == "paused" or "diverged" in why
                assert verdict == "stopped"
                assert trial.state == "stopped" or rung == max(trial.judged)
                before = trial.judged.get(rung)
                value, step = (None, RUNGS[rung]) if before is None else (before.value, before.step)
                assert parent in self.rule.needed(self.state)
                assert self.state.trials[parent].state not in ("stopped", "failed"), "which may be as bad"
                self.state.hear(judged(trial.number, rung, value, "stopped", step=step, parent=parent))
                assert self.state.trials[trial.number].state == "stopped"
                continue
            if (found := self.rule.promotable(self.state)) is not None:
                assert found[0].state == "paused"
                self.state.hear(taken(found[0].number))
                continue
            number = len(self.state.trials)
            if self.state.max_trials is not None and number >= self.state.max_trials:
                return
            if (new := self.sampler.suggest(self.state)) is None:
                return
            if new.lineage is not None:
                parent = self.state.trials[new.lineage.parent]
                assert parent.replaced is None or parent.replaced.step >= new.lineage.step
                assert new.lineage.step in self.there[parent.number], "its checkpoint is there still"
            self.state.hear(suggested(number, point=dict(new.point), source=new.source, lineage=new.lineage))

    def come(self) -> None:
        """One that runs comes to its next rung or its end, or leaves after it was told to."""
        trial = self.chance.choice(self.running())
        if trial.verdict is not None:
            state = "paused" if trial.verdict.verdict == "paused" else "stopped"
            self.state.hear(left(trial.number, state, step=trial.position))
            return
        rung = next((rung for rung, step in enumerate(RUNGS) if step > trial.position), None)
        if self.chance.random() < self.divergence:
            self.state.hear(left(trial.number, "stopped", step=trial.position))
            return
        if rung is None:
            self.state.hear(left(trial.number, "completed", step=50, value=0.0))
            return
        value = self.chance.choice([None, 0.1, 0.2, self.chance.random(), self.chance.random()])
        self.judge(trial, rung, value)

    def judge(self, trial: Trial, rung: int, value: float | None) -> None:
        state = self.state
        values = {t.number: t.judged[rung].value for t in state.trials if rung in t.judged} | {trial.number: value}
        verdict, why, parent = self.rule.judge(state, trial, rung, value)
        assert f"step {RUNGS[rung]}" in why
        assert (verdict == "stopped") == (parent is not None)
        if parent is not None:
            few = self.population.worst_of(len(values))
            better = sum(v is not None and v > values[parent] for v in values.values())
            assert better < few, "among the best"
            assert value is None or values[parent] > value
            worse = [v for v in values.values() if value is not None and (v is None or v < value)]
            assert len(worse) < few, "among the worst"
            assert state.trials[parent].replaced is None, "it goes on, or has come to the end"
        if verdict == "paused":
            assert self.slots < self.population.size, "with room for all, nobody waits"
        state.hear(judged(trial.number, rung, value, verdict, step=RUNGS[rung], parent=parent))
        self.there.setdefault(trial.number, set()).add(RUNGS[rung])
        self.thin_out()


@given(
    st.integers(2, 9),
    st.integers(1, 10),
    st.sampled_from([0.25, 0.4, 0.5]),
    st.none() | st.integers(0, 20),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.randoms(use_true_random=False),
)
def test_a_population_in_any_order(
    size: int, slots: int, quantile: float, more: int | None, divergence: float, chance: random.Random
) -> None:
    if size * quantile < 1:
        quantile = 0.5
    members = Members(size, slots, quantile, None if more is None else size + more, chance, divergence)
    members.fill()
    while members.running():
        members.come()
        members.fill()
        begun = members.state.trials
        replaced = [trial for trial in begun if trial.replaced is not None]
        assert len(begun) - len(replaced) + len(members.state.forks_to_come()) <= size, "never more go on"
    state = members.state
    assert {trial.state for trial in state.trials} <= {"completed", "stopped"}
    lost = [trial for trial in state.trials if trial.state == "stopped" and trial.replaced is None]
    assert not lost or divergence
    for trial in lost if more is None else ():
        ahead = next((rung for rung, step in enumerate(RUNGS) if step > trial.position), len(RUNGS))
        there = [t for t in state.trials if ahead in t.judged and t.judged[ahead].value is not None]
        assert all(t.state == "stopped" for t in there), "nobody is there to be forked"
    assert sum(trial.state == "completed" for trial in state.trials) == size - len(lost), "each that ends is replaced"
    places = [trial.lineage.replaces for trial in state.trials if trial.lineage is not None]
    assert len(set(places)) == len(places) == len(state.trials) - size
    assert more is None or len(state.trials) <= size + more
    came = Counter(rung for trial in state.trials for rung in trial.judged)
    assert divergence or all(count <= size for count in came.values())
    for trial in state.trials:
        assert all(RUNGS[rung] > trial.begun_at for rung in trial.judged), "not where it began"
    assert not any(members.rule.needed(state).values())


def test_the_one_that_is_furthest_behind_goes_on_first_and_of_equals_the_best() -> None:
    rule = PopulationRule(
        TuneSection(goal=GOAL, space={"params.rate": {"log": [0.1, 1]}}, population={"size": 4}).population,
        RUNGS,
        GOAL,
        0,
    )  # type: ignore[arg-type]
    state = state_of(*map(suggested, range(4)))
    for number, value in enumerate((0.1, 0.3, 0.2, 0.4)):
        state.hear(judged(number, 0, value, "paused", step=10))
        state.hear(left(number, "paused"))
    order = []
    while (found := rule.promotable(state)) is not None:
        order.append(found[0].number)
        state.hear(taken(found[0].number))
    assert order == [3, 1, 2, 0]
    assert rule.needed(state) == {number: {10} for number in range(4)}


def test_what_is_compared_is_the_value_of_the_checkpoint_that_others_may_go_on_from() -> None:
    found = Measurements(GOAL, ((5, 0.9), (10, 0.2)))
    population = TuneSection(goal=GOAL, space={"params.rate": {"log": [0.1, 1]}}, population={}).population
    assert population is not None
    assert PopulationRule(population, RUNGS, GOAL, 0).value_of(found, 10) == 0.2


def test_one_that_was_first_at_a_rung_is_compared_again_before_it_goes_on() -> None:
    members = Members(4, 1, 0.25, None, random.Random(0))
    for number, value in enumerate((0.1, 0.3, 0.2, 0.4)):
        members.fill()
        members.judge(members.state.trials[number], 0, value)
        if number < 3:
            members.state.hear(left(number, "paused"))
    first, last = members.state.trials[0], members.state.trials[3]
    assert last.verdict is None, "it goes on, being the last and the best"
    assert (first.state, first.replaced) == ("paused", None)
    members.judge(last, 1, 0.4)
    members.state.hear(left(3, "paused"))
    order = []
    while len(members.state.trials) == 4:
        members.fill()
        (running,) = members.running()
        order.append(running.number)
        members.state.hear(judged(running.number, 1, 0.3, "paused", step=20))
        members.state.hear(left(running.number, "paused"))
    assert order == [1, 2, 4], "the best first, and a fork in place of the worst"
    assert first.state == "stopped"
    assert first.replaced is not None
    assert first.replaced.parent == 3


def test_one_that_has_diverged_is_replaced_as_soon_as_another_one_comes_to_the_rung_ahead() -> None:
    members = Members(4, 4, 0.25, None, random.Random(0))
    members.fill()
    state = members.state
    for number in (0, 1):
        state.hear(left(number, "stopped"))
    members.fill()
    assert len(state.trials) == 4
    members.judge(state.trials[2], 0, None)
    assert members.rule.overtaken(state) is None, "it may be as bad"
    members.judge(state.trials[3], 0, 0.5)
    members.fill()
    lineages = [trial.lineage for trial in state.trials[4:]]
    assert [(one.parent, one.step, one.replaces) for one in lineages if one is not None] == [(3, 10, 0), (3, 10, 1)]
    assert [trial.state for trial in state.trials[:2]] == ["stopped", "stopped"]
