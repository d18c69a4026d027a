"""What a study's decisions amount to: the state of each trial. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from hpc_train.config.tune.section import Goal
from hpc_train.config.tune.space import Point
from hpc_train.tuning.search.decisions import Changed, Decision, Halted, Judged, Left, Lineage, Suggested, Taken

State = Literal["running", "waiting", "paused", "stopped", "completed", "failed"]


@dataclass
class Trial:
    """One trial.

    Attributes:
        number: Counted from 0.
        state: "running": a driver has it. "waiting": it was interrupted, and goes on next. "paused": others were better
            at its last rung, but may not be so in the end. "stopped": others were better, or it has diverged and they
            have not. "completed", "failed".
        driver: Who has it, or had it last.
        judged: The comparisons with others, by rung.
        step, value: Of its newest checkpoint, and the best of the goal, when it was left last.
        verdict: That of this run, by which it does not go on; None: it does.
        to_the_end: It is not compared with others any more.
        runs: How often it was begun.
        crashes: Of runs in a row that have left no newer checkpoint.
        lineage: Of a fork; None: it began with step 0.
        periods: When it ran, in seconds since 1970; the last one has no end while it runs.
    """

    number: int
    point: Point
    source: str
    driver: str
    state: State = "running"
    judged: dict[int, Judged] = field(default_factory=dict)
    step: int = 0
    value: float | None = None
    why: str = ""
    verdict: Judged | None = None
    to_the_end: bool = False
    runs: int = 1
    crashes: int = 0
    periods: list[tuple[float, float | None]] = field(default_factory=list)
    lineage: Lineage | None = None

    @property
    def name(self) -> str:
        """Of its job-dir, in the folder of trials."""
        return f"{self.number:04d}"

    @property
    def begun_at(self) -> int:
        """The step that it began from."""
        return self.lineage.step if self.lineage is not None else 0

    @property
    def position(self) -> int:
        """The step at which it was compared last, or that it began from."""
        return max((judged.step for judged in self.judged.values()), default=self.begun_at)

    @property
    def replaced(self) -> Judged | None:
        """The comparison by which a fork of another trial takes its place; None: none does."""
        return next((judged for judged in self.judged.values() if judged.parent is not None), None)


class StudyState:
    """The trials of a study, and what its users have asked for since it began.

    Args:
        goal: What it looks for.
        max_trials, max_hours: As in the job file.

    Attributes:
        trials: By number; each has the number of its place.
        halted: Why drivers are to stop; None: they are not.
    """

    def __init__(self, goal: Goal, max_trials: int | None, max_hours: float | None) -> None:
        self.goal, self.max_trials, self.max_hours = goal, max_trials, max_hours
        self.trials: list[Trial] = []
        self.halted: str | None = None

    def hear(self, decision: Decision) -> None:
        """Takes in the next decision; ValueError where it cannot come after those before."""
        if isinstance(decision, Changed):
            self.max_trials = decision.max_trials or self.max_trials
            self.max_hours = decision.max_hours or self.max_hours
        elif isinstance(decision, Halted):
            self.halted = decision.why if decision.halted else None
        elif isinstance(decision, Suggested):
            if decision.trial != len(self.trials):
                raise ValueError("trials are numbered in order")
            if (lineage := decision.lineage) is not None and max(lineage.parent, lineage.replaces) >= decision.trial:
                raise ValueError("a fork of a trial that there is not")
            trial = Trial(decision.trial, decision.point, decision.source, decision.driver, lineage=lineage)
            trial.step = trial.begun_at
            trial.periods.append((decision.time, None))
            self.trials.append(trial)
        elif decision.trial < len(self.trials):
            self._hear_of(self.trials[decision.trial], decision)
        else:
            raise ValueError("a decision about a trial that there is not")

    def _hear_of(self, trial: Trial, decision: Taken | Judged | Left) -> None:
        if isinstance(decision, Judged):
            parent = decision.parent
            if parent is not None and (parent >= len(self.trials) or decision.rung not in self.trials[parent].judged):
                raise ValueError("a fork of a trial that has not come to that rung")
            trial.judged[decision.rung] = decision
            trial.verdict = decision if decision.verdict != "promoted" else None
            if trial.state == "paused" and decision.verdict == "stopped":
                trial.state, trial.why = "stopped", decision.why
        elif isinstance(decision, Taken):
            trial.state, trial.driver, trial.why = "running", decision.driver, decision.why
            trial.runs, trial.verdict = trial.runs + 1, None
            trial.to_the_end = trial.to_the_end or decision.to_the_end
            trial.periods.append((decision.time, None))
        else:
            trial.crashes = 0 if decision.step > trial.step else trial.crashes + decision.crashed
            trial.state, trial.step, trial.why = decision.state, decision.step, decision.why
            trial.value = decision.value
            begin, end = trial.periods[-1]
            trial.periods[-1] = (begin, decision.time if end is None else end)

    def of(self, *states: State) -> Iterator[Trial]:
        """The trials in one of these states, by number."""
        return (trial for trial in self.trials if trial.state in states)

    def forks_to_come(self) -> list[Lineage]:
        """The forks that are to begin, from the lowest step first."""
        begun = {trial.lineage.replaces for trial in self.trials if trial.lineage is not None}
        found = []
        for trial in self.trials:
            judged = trial.replaced
            if judged is not None and judged.parent is not None and trial.number not in begun:
                step = self.trials[judged.parent].judged[judged.rung].step
                found.append(Lineage(parent=judged.parent, step=step, replaces=trial.number))
        return sorted(found, key=lambda lineage: (lineage.step, lineage.replaces))

    def forks_under_way(self) -> list[Lineage]:
        """The forks that are to begin, and those that may have no checkpoint of their own yet."""
        young = [trial for trial in self.of("running", "waiting") if not trial.judged]
        return [*self.forks_to_come(), *(trial.lineage for trial in young if trial.lineage is not None)]

    def ancestors(self, trial: Trial) -> list[Trial]:
        """Those from whose checkpoints a trial comes, the first one first."""
        found: list[Trial] = []
        while trial.lineage is not None:
            trial = self.trials[trial.lineage.parent]
            found.insert(0, trial)
        return found

    @property
    def best(self) -> Trial | None:
        """The trial with the best value so far, of those that nobody runs; the first of several."""
        found: Trial | None = None
        for trial in self.trials:
            value = trial.value
            if value is not None and self.goal.is_better(value, found.value if found is not None else None):
                found = trial
        return found

    def secs(self, now: float) -> float:
        """How long trials have run: the time in which one at least did."""
        total, reached = 0.0, 0.0
        for begin, end in sorted((begin, now if end is None else end) for t in self.trials for begin, end in t.periods):
            total += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        return total
