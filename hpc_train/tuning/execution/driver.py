"""Driver: runs a study's trials, each in a slot of its own, until the study is over or somebody stops it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.jobdir.paths import CODE
from hpc_train.outcome import (
    EXIT_FAILED,
    EXIT_LOST_NODE,
    EXIT_NOT_SAVED,
    EXIT_TERMINATED,
    STOP_CODES,
)
from hpc_train.resilience.signals import StopSignals
from hpc_train.tuning.execution.first_look import FirstLook
from hpc_train.tuning.execution.forks import CheckpointKeeper, ParentGoneError, put_in_place
from hpc_train.tuning.execution.kept_ranks import KeptRanks
from hpc_train.tuning.execution.orphans import end_orphans, remove_sessions
from hpc_train.tuning.execution.place import Place
from hpc_train.tuning.execution.slot_trial import SlotTrial, step_of
from hpc_train.tuning.execution.slots import Slot
from hpc_train.tuning.execution.trial_run import RankStarter, TrialCommand
from hpc_train.tuning.search.decisions import LeftState
from hpc_train.tuning.search.driver_lock import DriverLock
from hpc_train.tuning.search.folder import StudySettings
from hpc_train.tuning.search.measurements import Measurements, Watch
from hpc_train.tuning.search.population_rule import PopulationRule
from hpc_train.tuning.search.state import Trial
from hpc_train.tuning.search.study import Answer, Leaving, Study
from hpc_train.tuning.search.words import because, failures, lineage, point_in_words

POLL_SECS = 0.05
LOOK_SECS = 2.0
"""Between looks for what other drivers have left or decided, while there is nothing else to do."""
TRIES_OF_A_SLOT = 2
"""Starts of ranks in a row that have failed, after which a slot is left out: its node may be lost."""


@dataclass(frozen=True)
class Listeners:
    """What hears of a driver's work.

    Attributes:
        report: Gets a line for people.
        look: Called at each look at the trials that run, with them.
    """

    report: Callable[[str], None]
    look: Callable[[Sequence[SlotTrial]], None] = lambda _: None


class Driver:
    """Runs trials of `study`. Local; starts MPI ranks, and is none.

    Args:
        signals: What asks to stop: the trials save, and can go on.
        at_once: Ends the trials without asking.
    """

    def __init__(
        self,
        study: Study,
        settings: StudySettings,
        place: Place,
        signals: StopSignals,
        at_once: threading.Event,
        listeners: Listeners,
    ) -> None:
        self._study, self._settings, self._place = study, settings, place
        self._signals, self._at_once, self._listeners = signals, at_once, listeners
        self._running: list[SlotTrial] = []
        self._lock = DriverLock(study.folder.drivers)
        self._starters: dict[int, RankStarter] = {}
        self._slots, self._tries, self._lost = list(place.slots), Counter[int](), False
        self._came_up, self._is_full = False, False
        self._keeper = CheckpointKeeper(study, study.rule) if isinstance(study.rule, PopulationRule) else None
        self._looked, self._refreshed, self._answer = float("-inf"), float("-inf"), Answer("wait", "")
        self._stopping = ""

    def run(self) -> int:
        """Runs trials to the end of the study; the exit code.

        Raises:
            GoalError: Before the first trial (FirstLook).
            UserError: A decision or a trial cannot be written. The trials that run have been asked to stop then.
        """
        with self._lock, ExitStack() as stack:
            self._lock.sweep(remove_sessions)
            self._study.sweep()
            for slot in self._place.slots:
                self._starters[slot.number] = stack.enter_context(self._place.starter(slot, self._lock))
            try:
                if not self._study.state.trials:
                    self._look_first()
                return self._loop()
            finally:
                self._end_all()

    def _look_first(self) -> None:
        """Builds the model, before the first trial; GoalError where the study could not come to its goal."""
        slot = self._place.slots[0]
        with ExitStack() as stack:
            kept = self._starters[slot.number]
            if not isinstance(kept, KeptRanks):
                kept = stack.enter_context(self._place.kept_ranks(slot, self._lock))
            look = FirstLook(
                self._study, self._settings, kept, self._command, lambda: self._signals.received is not None
            )
            look.check(self._lock.folder / "goal")

    def _loop(self) -> int:
        while True:
            self._reap()
            if self._signals.received is not None:
                self._stop(f"{self._signals.received}: {self._saving}")
            if not self._stopping:
                self._fill()
            self._look()  # with no slot free, so that no trial makes room for one that has a slot already
            if not self._running and (self._stopping or self._answer.what == "over"):
                return self._end()
            time.sleep(POLL_SECS)

    def _fill(self) -> None:
        """Gives each free slot a trial, as far as there are any."""
        taken = {running.slot.number for running in self._running}
        for slot in self._slots:
            if slot.number in taken:
                continue
            if self._answer.what != "run" and not self._may_look():
                return
            self._answer = self._study.ask(self._lock.name)
            if self._answer.trial is None:
                return
            self._start(self._answer.trial, slot, self._answer.why)

    def _may_look(self) -> bool:
        """Whether it is time to look for what others have left or decided."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECS:
            return False
        self._looked = now
        self._take_over()
        return True

    def _take_over(self) -> None:
        """Frees the trials of drivers that have died, so that they go on."""
        study = self._study
        study.refresh()
        dead = sorted({t.driver for t in study.state.of("running") if not self._lock.lives(t.driver)})
        if not dead:
            return
        end_orphans(dead)
        for trial in study.orphans(self._lock.lives):
            job_dir = study.folder.job_dir(trial)
            found = Measurements.of(job_dir, study.goal, trial.begun_at)
            study.leave(
                trial, trial.driver, Leaving("waiting", step_of(trial, job_dir), found.best(), "its driver died")
            )

    def _start(self, trial: Trial, slot: Slot, why: str) -> None:
        study = self._study
        job_dir = study.folder.job_dir(trial)
        watch = Watch(job_dir, study.goal, trial.begun_at)
        # its last run may have gone beyond this rung before it heard; a fork may need the run that a population's has
        if self._keeper is None and (state := self._verdict(trial, watch)) is not None:
            why = trial.judged[max(trial.judged)].why
            study.leave(trial, self._lock.name, Leaving(state, trial.step, trial.value, why))
            return
        settings = [*self._settings.settings, *study.job.settings_of(trial, self._settings.name)]
        command = self._command(job_dir.path, settings)
        try:
            put_in_place(study.folder, trial)
            run = self._starters[slot.number].begin(command)
        except ParentGoneError as error:
            study.leave(trial, self._lock.name, Leaving("failed", trial.step, None, str(error)))
            if self._keeper is not None:
                self._keeper.thin_out()
            self._listeners.report(f"trial {trial.name} failed: {error}")
            return
        except OSError as error:
            study.leave(trial, self._lock.name, Leaving("waiting", trial.step, trial.value, "it could not be started"))
            raise UserError(f"{error.filename or job_dir.path}: cannot be written: {error.strerror}") from None
        self._running.append(SlotTrial(trial, slot, run, job_dir, watch))
        begins = f"begins {lineage(trial)}".rstrip() if trial.runs == 1 else f"goes on from step {trial.step}, {why}"
        self._listeners.report(f"{study.nouns.trial} {trial.name} {begins}: {point_in_words(trial.point)}")

    def _command(self, job_dir: Path, settings: Sequence[str]) -> TrialCommand:
        code = self._study.folder.path / CODE
        return TrialCommand(
            code / self._settings.entry, self._study.job.data_root, job_dir, self._place.ranks, settings
        )

    def _look(self) -> None:
        """Compares the trials that have come to a rung, and has those stop that are not to go on."""
        study = self._study
        for running in self._running:
            if self._compare(running):
                running.run.ask_to_stop()
        if self._running and study.hours_left() == 0:
            self._stop(f"max_hours ({study.state.max_hours:g}) are over: {self._saving}")
        if self._running and self._halted():
            self._stop(f"{study.state.halted}: {self._saving}")
        self._listeners.look(self._running)

    def _compare(self, running: SlotTrial) -> bool:
        """Compares a trial at the rungs that it has come to; whether it is not to go on, which it was until now."""
        if running.verdict is not None:
            return False
        running.verdict = self._verdict(running.trial, running.watch)
        return running.verdict is not None

    def _verdict(self, trial: Trial, watch: Watch) -> LeftState | None:
        """The state that a trial goes to, by the rungs that it has come to; None: it goes on."""
        study = self._study
        if study.rule is None:
            return None
        found = watch.look()
        for rung, step in enumerate(study.rule.rungs):
            if step <= trial.begun_at or rung in trial.judged or (at := found.at(step)) is None:
                continue
            judged = study.judge(trial, rung, at, study.rule.value_of(found, at))
            if self._keeper is not None:
                self._keeper.thin_out()
            if judged is not None and judged.verdict != "promoted":
                return "paused" if judged.verdict == "paused" else "stopped"
        return None

    def _halted(self) -> bool:
        if time.monotonic() - self._refreshed > LOOK_SECS:
            self._refreshed = time.monotonic()
            self._study.refresh()
        return self._study.state.halted is not None

    @property
    def _saving(self) -> str:
        return f"the {self._study.nouns.trial}s save and stop"

    def _stop(self, why: str) -> None:
        if not self._stopping:
            self._stopping = why
            self._listeners.report(why)
            for running in self._running:
                running.run.ask_to_stop()
        if self._at_once.is_set():
            self._at_once.clear()
            for running in self._running:
                running.run.end_at_once()

    def _reap(self) -> None:
        """Notes how the trials that have left are."""
        for running in list(self._running):
            if (code := running.run.code()) is not None:
                self._running.remove(running)
                self._left(running, code)

    def _left(self, running: SlotTrial, code: int) -> None:
        study, trial = self._study, running.trial
        self._looked = float("-inf")  # others may go on by what it has left
        if running.run.never_began():
            self._give_up_slot(running, code)
            return
        self._tries[running.slot.number], self._came_up = 0, True
        self._compare(running)  # it may have come further than was seen
        before = study.state.best
        left = running.leaving(study, code, self._stopping or self._signals.received or "")
        study.leave(trial, self._lock.name, left)
        if self._keeper is not None:
            self._keeper.thin_out()
        words = f"{study.goal.metric} {left.value:.4g}" if left.value is not None else f"no {study.goal.metric}"
        best = ", the best so far" if study.state.best is trial and before is not trial else ""
        if code == EXIT_NOT_SAVED:
            self._is_full = True
            self._stop(f"{left.why}: {self._saving}")
        why = because(trial, study.state.of("failed"), study.folder.trials, study.nouns)
        self._listeners.report(
            f"{study.nouns.trial} {trial.name} {trial.state} at step {left.step}: {words}{best}{why}"
        )

    def _give_up_slot(self, running: SlotTrial, code: int) -> None:
        """No ranks have come up in a slot, twice already: it is left out, and its trial runs in another one."""
        trial, slot = running.trial, running.slot
        why = running.run.failure(code)
        if not self._stopping:
            self._tries[slot.number] += 1
        self._study.leave(
            trial, self._lock.name, Leaving("waiting", trial.step, trial.value, f"no ranks came up: {why}")
        )
        if self._tries[slot.number] >= TRIES_OF_A_SLOT:
            self._slots = [other for other in self._slots if other.number != slot.number]
            where = f" on {slot.node}" if slot.node is not None else ""
            self._listeners.report(f"slot {slot.number}{where} is left out: no ranks came up: {why}")
        if not self._slots:
            self._stop("no slot is left in which ranks come up")
            self._lost = True

    def _end(self) -> int:
        """The exit code, and the last lines."""
        study, report = self._study, self._listeners.report
        state, failed = study.state, list(study.state.of("failed"))
        if failed:
            report(failures(failed, study.folder.trials, study.nouns))
        if self._stopping:
            report(f"the {study.nouns.study} goes on with: hpc-train {study.nouns.command} {study.folder.path}")
            if self._is_full:
                return EXIT_NOT_SAVED
            if self._lost:  # where no ranks ever came up, it is not that a node was lost, and a requeue is of no use
                return EXIT_LOST_NODE if self._came_up else EXIT_FAILED
            return STOP_CODES.get(self._signals.received or "", EXIT_TERMINATED)
        report(f"the {study.nouns.study} is over: {self._answer.why}")
        if not any(state.of("completed")):
            report(f"no {study.nouns.trial} has come to its end")
            return EXIT_FAILED
        return EXIT_FAILED if len(failed) > study.job.tune.max_failed_trials else 0

    def _end_all(self) -> None:
        """Where something was raised: has the trials stop, and waits for them, so that none is left alone."""
        for running in self._running:
            running.run.ask_to_stop()
        while self._running and not self._at_once.is_set():
            for running in list(self._running):
                if running.run.code() is not None:
                    self._running.remove(running)
            time.sleep(POLL_SECS)
        for running in self._running:
            running.run.end_at_once()
