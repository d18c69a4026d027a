"""Study: the decisions about trials, made one after the other whoever asks. It runs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hpc_train.config.tune.section import MOST_TRIALS
from hpc_train.config.tune.trial_settings import rungs_of
from hpc_train.errors import UserError
from hpc_train.resilience.job_lock import holder_of
from hpc_train.telemetry.units import counted
from hpc_train.tuning.search.decisions import (
    LONGEST_TEXT,
    Changed,
    Decision,
    Halted,
    Judged,
    Left,
    LeftState,
    Suggested,
    Taken,
)
from hpc_train.tuning.search.driver_lock import lives
from hpc_train.tuning.search.folder import StudyFolder, StudyJob, write_best
from hpc_train.tuning.search.journal import Journal
from hpc_train.tuning.search.rule import Finding
from hpc_train.tuning.search.rules import rule_of
from hpc_train.tuning.search.samplers import Sampler, sampler_of
from hpc_train.tuning.search.state import State, StudyState, Trial
from hpc_train.tuning.search.words import OF_STUDY, Nouns, story

NOTHING_LEFT = "all trials have been tried"
NOBODY = "0" * 16
"""No driver."""


@dataclass(frozen=True)
class Answer:
    """What a driver that has room for a trial is to do.

    Attributes:
        what: "run" a trial; "wait" for one that may come; it is "over".
        why: In words.
    """

    what: Literal["run", "wait", "over"]
    why: str
    trial: Trial | None = None


@dataclass(frozen=True)
class Leaving:
    """How a trial is when a driver runs it no more; see Left."""

    state: LeftState
    step: int
    value: float | None
    why: str = ""
    crashed: bool = False


class Study:
    """The study in a folder. Several processes may have one of it open. Local.

    Args:
        folder, job: Of the study.
        clock: Seconds since 1970.

    Attributes:
        state: What has been decided; as of the last call.
    """

    def __init__(self, folder: StudyFolder, job: StudyJob, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.job, self.goal = folder, job, job.goal
        self.state = StudyState(self.goal, job.tune.max_trials, job.tune.max_hours)
        self.rule = rule_of(job.tune, rungs_of(job.job), self.goal)
        self._clock = clock
        self._noted: float | None = None
        self._journal = Journal(folder.decisions, self.state.hear)
        self._journal.read_whole()

    @property
    def nouns(self) -> Nouns:
        """What it and its trials are called."""
        return self.job.nouns

    def refresh(self) -> None:
        """Reads what others have decided."""
        self._journal.refresh()

    def sweep(self) -> None:
        """Removes what processes have left that were killed while they decided."""
        self._journal.sweep()

    def ask(self, driver: str) -> Answer:
        """A trial for `driver`, which has it from here on.

        It is one that was interrupted, or one that is among the best at its rung by now, or a new one.

        Raises:
            UserError: The decision cannot be written.
        """
        answers: list[Answer] = []

        def decide() -> Decision | None:
            decision, answer = self._next(driver)
            answers.append(answer)
            return decision

        decision = self._journal.append(decide)
        while isinstance(decision, Judged):  # one that nobody runs will not go on; what will?
            decision = self._journal.append(decide)
        answer = answers[-1]
        if decision is None:
            return answer
        assert isinstance(decision, Suggested | Taken), "what _next decides"
        return Answer("run", answer.why, self.state.trials[decision.trial])

    def _next(self, driver: str) -> tuple[Decision | None, Answer]:
        state, now = self.state, self._clock()
        if (over := self._is_over(now)) is not None:
            return None, Answer("over", over)
        found = next(state.of("waiting"), None)
        if found is None and self.rule is not None and (overtaken := self.rule.overtaken(state)) is not None:
            return self._judged_later(*overtaken, now), Answer("wait", overtaken[-1].why)
        again = (found, "it was interrupted") if found is not None else self._promotable()
        if again is not None:
            trial, why = again
            return Taken(time=now, trial=trial.number, driver=driver, why=why), Answer("run", why)
        number = len(state.trials)
        suggested = None
        if state.max_trials is None or number < state.max_trials:
            suggested = self._sampler.suggest(state)
        if suggested is not None:
            point, source, lineage = suggested
            made = Suggested(time=now, trial=number, driver=driver, point=dict(point), source=source, lineage=lineage)
            return made, Answer("run", source)
        if running := len(list(state.of("running"))):
            return None, Answer("wait", f"{counted(running, self.nouns.trial)} may make room for others")
        if self.rule is not None and (last := self.rule.last_of_all(state)) is not None:
            trial, why = last
            taken = Taken(time=now, trial=trial.number, driver=driver, why=why, to_the_end=True)
            return taken, Answer("run", why)
        return None, Answer("over", NOTHING_LEFT.replace("trial", self.nouns.trial))

    def is_done(self) -> bool:
        """Whether no trial is to begin or to go on any more."""
        return self._next(NOBODY)[1].what == "over"

    @cached_property
    def _sampler(self) -> Sampler:
        """Made when it is first asked: looking at a study takes no Optuna."""
        return sampler_of(self.job.tune)

    def _promotable(self) -> tuple[Trial, str] | None:
        return self.rule.promotable(self.state) if self.rule is not None else None

    def _is_over(self, now: float) -> str | None:
        """Why no trial is to begin any more, whatever is left; None: one may."""
        state, tune = self.state, self.job.tune
        if state.halted is not None:
            return state.halted
        failed = list(state.of("failed"))
        if len(failed) > tune.max_failed_trials:
            return f"{counted(len(failed), self.nouns.trial)} failed, and max_failed_trials is {tune.max_failed_trials}"
        if self.hours_left(now) == 0:
            return f"the {self.nouns.trial}s have run for max_hours ({state.max_hours:g})"
        return None

    def hours_left(self, now: float | None = None) -> float | None:
        """How long trials may still run; None: for ever."""
        if self.state.max_hours is None:
            return None
        return max(0.0, self.state.max_hours - self.state.secs(self._clock() if now is None else now) / 3600)

    def judge(self, trial: Trial, rung: int, step: int, value: float | None) -> Judged | None:
        """Compares a trial that has come to `rung`, counted from 0, with the others.

        Args:
            step, value: Of its evaluation there, and what is compared (Rule.value_of); None: it was no number.

        Returns:
            What was decided, now or before; None where no rule compares trials.
        """
        rule = self.rule
        if rule is None or trial.to_the_end:
            return None

        def decide() -> Decision | None:
            if rung in trial.judged:
                return None
            verdict, why, parent = rule.judge(self.state, trial, rung, value)
            return Judged(
                time=self._clock(),
                trial=trial.number,
                rung=rung,
                step=step,
                value=value,
                verdict=verdict,
                why=why,
                parent=parent,
            )

        self._journal.append(decide)
        return trial.judged[rung]

    def _judged_later(self, trial: Trial, rung: int, found: Finding, now: float) -> Judged:
        """The comparison of a trial that nobody runs, with those that have come by now to its rung."""
        assert self.rule is not None, "which has compared it"
        before = trial.judged.get(rung)
        return Judged(
            time=now,
            trial=trial.number,
            rung=rung,
            step=self.rule.rungs[rung] if before is None else before.step,
            value=None if before is None else before.value,
            verdict=found.verdict,
            why=f"{found.why} by now",
            parent=found.parent,
        )

    def leave(self, trial: Trial, driver: str, left: Leaving) -> None:
        """Notes that `driver` runs a trial no more.

        Without effect where another one has it by now. A trial that was compared with others in this run is what that
        made of it, rather than "waiting".
        """

        def decide() -> Decision | None:
            if trial.state != "running" or trial.driver != driver:
                return None
            state, why = left.state, left.why[:LONGEST_TEXT]
            if state == "waiting" and trial.verdict is not None:
                state, why = _state_after(trial.verdict), trial.verdict.why
            return Left(
                time=max(self._clock(), trial.periods[-1][0]),
                trial=trial.number,
                driver=driver,
                state=state,
                step=left.step,
                value=left.value,
                why=why,
                crashed=left.crashed,
            )

        if self._journal.append(decide) is not None:
            self._note_best()

    def orphans(self, lives: Callable[[str], bool]) -> list[Trial]:
        """The trials that a driver which `lives` no more has left, and which nothing runs any more, as far as seen."""
        self.refresh()
        dead: dict[str, bool] = {}
        found = []
        for trial in self.state.of("running"):
            if trial.driver not in dead:
                dead[trial.driver] = not lives(trial.driver)
            if dead[trial.driver] and holder_of(self.folder.job_dir(trial).path) is None:
                found.append(trial)
        return found

    def add_trials(self, count: int) -> None:
        """Allows `count` trials more.

        Raises:
            UserError: That is more trials than a study can have, or there would be no use of them.
        """
        where, is_population = self.folder.path, self.job.tune.population is not None

        def decide() -> Decision:
            if self.nouns is not OF_STUDY:
                raise UserError(f"{where}: is an ensemble, which has as many members as its job file says")
            if self.state.max_trials is None:
                if is_population:
                    raise UserError(
                        f"{where}: a population without `max_trials` forks as many trials as it replaces; hpc-train "
                        f"tune {where} goes on with it"
                    )
                raise UserError(f"{where}: the study tries all points of a grid, of which there are no more")
            if is_population and self._is_over(self._clock()) is None and self.is_done():
                raise UserError(
                    f"{where}: all of the population have come to their ends, so there is none to be replaced; begin "
                    "another study, with a larger `max_trials`"
                )
            if (trials := self.state.max_trials + count) > MOST_TRIALS:
                raise UserError(f"{where}: {trials:,} trials are not allowed; allowed: {MOST_TRIALS:,} in all")
            return Changed(time=self._clock(), max_trials=trials)

        self._journal.append(decide)

    def allow_trials(self, count: int) -> None:
        """Allows `count` trials in all, where fewer were allowed so far."""

        def decide() -> Decision | None:
            is_more = self.state.max_trials is not None and self.state.max_trials < count
            return Changed(time=self._clock(), max_trials=count) if is_more else None

        self._journal.append(decide)

    def allow_hours(self, max_hours: float) -> None:
        """Allows trials to run so many hours, in all."""
        self._journal.append(lambda: Changed(time=self._clock(), max_hours=max_hours))

    def halt(self, why: str) -> bool:
        """Has all drivers stop, after saving; whether they had not been asked before."""
        return self._set_halted(True, why)

    def reopen(self) -> bool:
        """Allows drivers again to run trials; whether they were not."""
        return self._set_halted(False, "")

    def _set_halted(self, halted: bool, why: str) -> bool:
        def decide() -> Decision | None:
            is_so = (self.state.halted is not None) == halted
            return None if is_so else Halted(time=self._clock(), halted=halted, why=why)

        return self._journal.append(decide) is not None

    def _note_best(self) -> None:
        """Writes down the best trial again until it is that of all processes, one of which may write meanwhile."""
        while (best := self.state.best) is not None and best.value is not None and best.value != self._noted:
            write_best(self.folder, self.job, best, best.value, story(self.state, best))
            self._noted = best.value
            self.refresh()


def living(study: Study) -> frozenset[str]:
    """The drivers that run a trial of it, and live; all others have left theirs, which go on with the next driver."""
    names = {trial.driver for trial in study.state.of("running")}
    return frozenset(name for name in names if lives(study.folder.drivers, name))


def state_now(trial: Trial, alive: Collection[str]) -> State:
    """The state of a trial, where those `alive` are the drivers that are."""
    return "waiting" if trial.state == "running" and trial.driver not in alive else trial.state


def _state_after(judged: Judged) -> LeftState:
    return "paused" if judged.verdict == "paused" else "stopped"
