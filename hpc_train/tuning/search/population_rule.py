"""PopulationRule: which trials of a population end, and of which others forks take their places. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpc_train.config.tune.population import Population
from hpc_train.config.tune.section import MOST_TRIALS, Goal
from hpc_train.config.tune.space import share
from hpc_train.telemetry.units import counted
from hpc_train.tuning.search.measurements import Measurements
from hpc_train.tuning.search.rule import Finding, Rule
from hpc_train.tuning.search.state import StudyState, Trial

_BAD = ("stopped", "failed")
"""States of trials that are not forked."""


class PopulationRule(Rule):
    """See config.tune.population.Population.

    A trial is compared with all that have come to the rung so far, by the value of that very checkpoint, from which
    others may go on. Nobody waits for those that are behind where there are slots for all; else the one that is
    furthest behind goes on first, and a trial that has come to a rung makes room for it. Of those that are equally far
    the best goes first, and before one goes on it is compared again, with those that have come by now. One that has
    diverged is replaced by a fork of one that has come to the rung ahead of it, as soon as there is one.

    Args:
        seed: By which a parent is drawn among the best.
    """

    def __init__(self, settings: Population, rungs: Sequence[int], goal: Goal, seed: int) -> None:
        super().__init__(rungs, goal)
        self._settings, self._seed = settings, seed

    def value_of(self, found: Measurements, step: int) -> float | None:
        return found.value_at(step)

    def judge(self, state: StudyState, trial: Trial, rung: int, value: float | None) -> Finding:
        found = self._compared(state, trial, rung, value)
        if found.verdict == "promoted" and (behind := self._not_run_behind(state, self.rungs[rung])):
            return Finding("paused", f"{found.why}; {counted(behind, 'trial')} behind it first")
        return found

    def _compared(self, state: StudyState, trial: Trial, rung: int, value: float | None) -> Finding:
        """Whether a trial goes on, or is replaced, by the values that are known at `rung`."""
        values, step = {**self._values(state, rung), trial.number: value}, self.rungs[rung]
        count, few = len(values), self._settings.worst_of(len(values))
        ranked = sorted(values, key=lambda number: (self._order(values[number]), number))
        among = f"not among the worst {few} of {count} at step {step}"
        if trial.number in ranked[count - few :]:
            among = f"among the worst {few} of {count} at step {step}"
            parents = self._able(state, [n for n in ranked[:few] if self._order(values[n]) < self._order(value)])
            if not self._may_fork(state):
                among += ", and no further trial is allowed"
            elif parents:
                return self._replaced(state, trial, rung, parents, among)
        return Finding("promoted", among)

    def overtaken(self, state: StudyState) -> tuple[Trial, int, Finding] | None:
        for trial, rung in self._diverged(state):
            few = max(1, self._settings.worst_of(len(self._values(state, rung)) + 1))
            if parents := self._able(state, self._with_numbers(state, rung))[:few]:
                why = f"diverged before step {self.rungs[rung]}"
                return trial, rung, self._replaced(state, trial, rung, parents, why)
        if (next_one := self.promotable(state)) is None:
            return None
        trial, _ = next_one
        rung = max(trial.judged)
        found = self._compared(state, trial, rung, trial.judged[rung].value)
        return (trial, rung, found) if found.verdict == "stopped" else None

    def _diverged(self, state: StudyState) -> Iterator[tuple[Trial, int]]:
        """Those that have ended though no other one was better, and are to be replaced; with the rung ahead of each."""
        for trial in state.of("stopped") if self._may_fork(state) else ():
            ahead = next((rung for rung, step in enumerate(self.rungs) if step > trial.position), None)
            if trial.replaced is None and ahead is not None:
                yield trial, ahead

    def _with_numbers(self, state: StudyState, rung: int) -> list[int]:
        """The trials that have come to a rung with a number, best first."""
        values = self._values(state, rung)
        return sorted((n for n in values if values[n] is not None), key=lambda n: (self._order(values[n]), n))

    def _able(self, state: StudyState, numbers: Sequence[int]) -> list[int]:
        """Those of trials that may be forked: they have neither ended before their time, nor are they to."""
        trials = (state.trials[number] for number in numbers)
        return [trial.number for trial in trials if trial.state not in _BAD and trial.replaced is None]

    def _replaced(self, state: StudyState, trial: Trial, rung: int, parents: Sequence[int], why: str) -> Finding:
        parent = parents[math.floor(share(self._seed, trial.number, f"parent at {rung}") * len(parents))]
        return Finding("stopped", f"{why}; a fork of {state.trials[parent].name} takes its place", parent)

    def promotable(self, state: StudyState) -> tuple[Trial, str] | None:
        def place(trial: Trial) -> tuple[int, float, int]:
            return trial.position, self._order(trial.judged[max(trial.judged)].value), trial.number

        paused = sorted((trial for trial in state.of("paused") if trial.judged), key=place)
        if not paused or any(position < paused[0].position for position in self._new(state)):
            return None
        return paused[0], "the furthest behind of those that nobody runs"

    def needed(self, state: StudyState) -> dict[int, set[int]]:
        """The steps of checkpoints with which forks may begin, by the number of the trial that has them."""
        going_on = [trial for trial in state.of("running", "waiting", "paused") if trial.replaced is None]
        positions = [*(trial.position for trial in going_on), *self._new(state)]
        for _, rung in self._diverged(state):
            step = self.rungs[rung]
            if self._able(state, self._with_numbers(state, rung)) or any(place < step for place in positions):
                positions.append(step)
        oldest = min(positions, default=float("inf"))
        found = {
            trial.number: {judged.step for judged in trial.judged.values() if judged.step >= oldest}
            for trial in state.trials
            if trial.replaced is None and trial.state not in _BAD
        }
        for fork in state.forks_under_way():
            found.setdefault(fork.parent, set()).add(fork.step)
        return found

    def _may_fork(self, state: StudyState) -> bool:
        return len(state.trials) + len(self._new(state)) < (state.max_trials or MOST_TRIALS)

    def _not_run_behind(self, state: StudyState, step: int) -> int:
        """How many trials before `step` have no slot, beyond those for which one is about to become free."""
        waiting = [*(trial.position for trial in state.of("waiting", "paused")), *self._new(state)]
        freed = sum(trial.verdict is not None for trial in state.of("running"))
        return max(0, sum(position < step for position in waiting) - freed)

    def _new(self, state: StudyState) -> list[int]:
        """The steps from which trials are to begin that have not begun yet."""
        founders = sum(trial.lineage is None for trial in state.trials)
        return [0] * (self._settings.size - founders) + [lineage.step for lineage in state.forks_to_come()]
