"""How trials are compared at a rung, and which one goes on from there: halving, and the median. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hpc_train.config.tune.population import Population
from hpc_train.config.tune.section import Asha, Goal, Median, TuneSection
from hpc_train.telemetry.units import counted
from hpc_train.tuning.search.population_rule import PopulationRule
from hpc_train.tuning.search.rule import Finding, Rule
from hpc_train.tuning.search.state import StudyState, Trial


class HalvingRule(Rule):
    """Asynchronous successive halving: see config.tune.section.Asha.

    A trial goes on where it is among the best of the n that have come to the rung so far, n // factor of them.
    Otherwise it pauses; it goes on later, once enough others have come and were worse.
    """

    def __init__(self, settings: Asha, rungs: Sequence[int], goal: Goal) -> None:
        super().__init__(rungs, goal)
        self._factor = settings.factor

    def judge(self, state: StudyState, trial: Trial, rung: int, value: float | None) -> Finding:
        values = {**self._values(state, rung), trial.number: value}
        best = self._best(values)
        if trial.number in best:
            return Finding("promoted", f"among the best {len(best)} of {len(values)} at step {self.rungs[rung]}")
        if not best:
            come = f"{counted(len(values), 'trial')} came to step {self.rungs[rung]} so far"
            return Finding("paused", f"{come}, and one in {self._factor} goes on")
        return Finding("paused", f"not among the best {len(best)} of {len(values)} at step {self.rungs[rung]}")

    def promotable(self, state: StudyState) -> tuple[Trial, str] | None:
        paused = list(state.of("paused"))
        for rung in reversed(range(len(self.rungs))):
            values = self._values(state, rung)
            best = self._best(values)
            for trial in paused:
                if trial.number in best and max(trial.judged) == rung:
                    return trial, f"among the best {len(best)} of {len(values)} at step {self.rungs[rung]} by now"
        return None

    def last_of_all(self, state: StudyState) -> tuple[Trial, str] | None:
        paused = [trial for trial in state.of("paused") if trial.judged]
        if not paused or any(state.of("completed")):
            return None
        top = max(max(trial.judged) for trial in paused)
        there = [trial for trial in paused if max(trial.judged) == top]
        trial = min(there, key=lambda trial: (self._order(trial.judged[top].value), trial.number))
        return trial, f"the best at step {self.rungs[top]}, and no trial has come to the end"

    def _best(self, values: dict[int, float | None]) -> set[int]:
        ranked = sorted((n for n in values if values[n] is not None), key=lambda n: (self._order(values[n]), n))
        return set(ranked[: len(values) // self._factor])


class MedianRule(Rule):
    """See config.tune.section.Median."""

    def __init__(self, settings: Median, rungs: Sequence[int], goal: Goal) -> None:
        super().__init__(rungs, goal)
        self._least = settings.least_trials

    def judge(self, state: StudyState, trial: Trial, rung: int, value: float | None) -> Finding:
        others = [t.judged[rung].value for t in state.trials if rung in t.judged and t.number != trial.number]
        at = f"at step {self.rungs[rung]}"
        if len(others) < self._least:
            text = f"{len(others)} others have come so far {at}, and {self._least} are to be compared with"
            return Finding("promoted", text)
        middle = median(map(self._order, others))
        if self._order(value) > middle:
            return Finding("stopped", f"worse than the median of {len(others)} others {at} ({self._shown(middle)})")
        return Finding("promoted", f"not worse than the median of {len(others)} others {at} ({self._shown(middle)})")

    def _shown(self, order: float) -> str:
        return "no number" if order == float("inf") else f"{-order if self._goal.mode == 'max' else order:.4g}"


def rule_of(tune: TuneSection, rungs: Sequence[int], goal: Goal) -> Rule | None:
    """The rule by which the trials of a study are compared."""
    settings = tune.rule
    if isinstance(settings, Population):
        return PopulationRule(settings, rungs, goal, tune.seed)
    if isinstance(settings, Asha):
        return HalvingRule(settings, rungs, goal)
    return MedianRule(settings, rungs, goal) if settings is not None else None
