"""What a driver does with its slots, on a clock that only its own waiting moves; its trials train nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train import UserError
from hpc_train.outcome import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_LOST_NODE,
    EXIT_NOT_FINITE,
    EXIT_NOT_SAVED,
    EXIT_TERMINATED,
)
from hpc_train.resilience.signals import StopSignals
from hpc_train.tuning.execution import driver as module
from hpc_train.tuning.execution import slot_trial
from hpc_train.tuning.execution.assignments import ModelFacts
from hpc_train.tuning.execution.driver import Driver, Listeners
from hpc_train.tuning.execution.place import Place
from hpc_train.tuning.execution.slots import Slot
from hpc_train.tuning.search.driver_lock import DriverLock
from hpc_train.tuning.search.folder import StudySettings
from hpc_train.tuning.search.study import Leaving, Study
from tests.job_dirs import record, write_job
from tests.studies import SPACE, opened, study_in

OTHER = "f" * 16


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, secs: float) -> None:
        self.now += secs


class Run:
    """A run of a trial that has a value at its first rung after some seconds, and ends after as many more."""

    def __init__(self, clock: Clock, job_dir: Path, secs: float, value: float | None) -> None:
        self._clock, self._job_dir, self._came, self._value = clock, job_dir, clock.now + secs, value
        self._end, self._asked = self._came + secs, False

    def code(self) -> int | None:
        if self._clock.now >= self._came and not self._job_dir.exists():
            write_job(self._job_dir, [record("eval", 3, 1.0, accuracy=self._value)])
        if self._asked:
            return 4
        return 0 if self._clock.now >= self._end else None

    def ask_to_stop(self) -> None:
        self._asked = True

    end_at_once = ask_to_stop

    def never_began(self) -> bool:
        return False

    def facts(self) -> ModelFacts:
        return ModelFacts({"eval": ["loss", "accuracy"]})


class Starter:
    def __init__(self, begin: Callable[[Path], Run]) -> None:
        self._begin = begin

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, command: Any) -> Run:
        return self._begin(command.job_dir)

    facts = begin


class FakePlace(Place):
    begin: Callable[[Path], Run]

    def starter(self, slot: Slot, lock: DriverLock) -> Any:
        return Starter(self.begin)

    def kept_ranks(self, slot: Slot, lock: DriverLock) -> Any:
        return Starter(self.begin)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=found.monotonic, sleep=found.sleep))
    return found


def drive(
    study: Study, clock: Clock, slots: int, trials: dict[str, tuple[float, float | None]]
) -> tuple[int, list[str]]:
    """The exit code of a driver, and what it says; each trial's seconds to its first rung, and its value there."""

    def begin(job_dir: Path) -> Run:
        return Run(clock, job_dir, *trials.get(job_dir.name, (0.0, None)))

    place = FakePlace([Slot(number, (number,)) for number in range(slots)], None, 1, "single")  # type: ignore[arg-type]
    object.__setattr__(place, "begin", begin)
    settings = StudySettings("demo", "/job.yaml", "job.yaml", (), 1, 0.0, "1", {})
    said: list[str] = []
    code = Driver(study, settings, place, StopSignals(), threading.Event(), Listeners(said.append)).run()
    return code, said


def test_a_slot_that_is_free_takes_a_trial_that_may_go_on_while_others_run(tmp_path: Path, clock: Clock) -> None:
    """Trial 0 goes on as soon as trial 1 was worse, while trial 2 takes long."""
    folder = study_in(tmp_path / "study", SPACE, "max_trials: 3", "early_stopping: {asha: {factor: 2}}")
    study = opened(folder, clock.monotonic)
    drive(study, clock, 3, {"0000": (1, 0.9), "0001": (10, 0.5), "0002": (200, 0.1)})
    first = study.state.trials[0].periods
    assert first[0][1] == pytest.approx(1, abs=1)
    assert first[1][0] == pytest.approx(10, abs=1), "at once, not when all slots are free"


def test_the_trial_of_a_driver_that_dies_goes_on_while_others_run(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 2"), clock.monotonic)
    study.ask(OTHER)
    monkeypatch.setattr(DriverLock, "lives", lambda self, name: name != OTHER or clock.now < 10)
    code, said = drive(study, clock, 2, {"0000": (1, 0.9), "0001": (100, 0.5)})
    assert code == 0
    assert [begin for begin, _ in study.state.trials[0].periods] == [0.0, pytest.approx(10, abs=module.LOOK_SECS + 1)]
    assert "the study is over: all trials have been tried" in said


def test_a_goal_that_is_not_reported_is_told_before_the_first_trial(tmp_path: Path, clock: Clock) -> None:
    folder = study_in(tmp_path / "study", SPACE, "max_trials: 2")
    job_file = folder.path / "code" / "job.yaml"
    job_file.write_text(job_file.read_text().replace("metric: accuracy", "metric: acuracy"))
    study = opened(folder, clock.monotonic)
    with pytest.raises(UserError) as caught:
        drive(study, clock, 1, {})
    assert "tune.goal.metric: no evaluation reports 'acuracy'; did you mean `accuracy`?" in str(caught.value)
    assert str(caught.value).endswith("allowed: loss, accuracy")
    assert study.state.trials == []


@pytest.mark.parametrize(("came_up", "code"), [(False, EXIT_FAILED), (True, EXIT_LOST_NODE)])
def test_slots_in_which_no_ranks_come_up_are_left_out(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, came_up: bool, code: int
) -> None:
    """A job is requeued where ranks came up before: its node is lost. Else that would have no end."""
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 3"), clock.monotonic)
    monkeypatch.setattr(Run, "never_began", lambda self: not came_up or len(study.state.trials) > 1)
    monkeypatch.setattr(Run, "failure", lambda self, code: "mpirun: no such file", raising=False)
    found, said = drive(study, clock, 1, {"0000": (1, 0.9), "0001": (1, 0.5)})
    assert found == code
    assert "slot 0 is left out: no ranks came up: mpirun: no such file" in said
    assert [trial.state for trial in study.state.trials][-1] == "waiting"
    assert not any(study.state.of("failed"))


def test_a_trial_whose_job_dir_others_use_is_tried_until_they_have_left(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the ranks of a node do that was taken for lost, and was not."""
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 1"), clock.monotonic)
    code = Run.code
    monkeypatch.setattr(Run, "code", lambda run: EXIT_BAD_INPUT if 0 < clock.now < 10 else code(run))
    monkeypatch.setattr(Run, "failure", lambda self, code: "another job uses this job-dir", raising=False)
    monkeypatch.setattr(slot_trial, "holder_of", lambda _: {"pid": 1} if clock.now < 10 else None)
    study.ask(OTHER)
    study.leave(study.state.trials[0], OTHER, Leaving("waiting", 0, None))
    clock.now = 1.0
    assert drive(study, clock, 1, {"0000": (1, 0.9)})[0] == 0
    (trial,) = study.state.trials
    assert (trial.state, trial.crashes) == ("completed", 0)
    assert trial.periods[-1][0] == pytest.approx(10, abs=0.1)


def test_a_trial_is_not_to_blame_where_a_queue_ends_it_and_its_driver_at_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 1"), clock.monotonic)
    study.ask(OTHER)
    study.leave(study.state.trials[0], OTHER, Leaving("waiting", 0, None))

    def code(run: Run) -> int:
        monkeypatch.setattr(StopSignals, "received", "SIGTERM")
        return 128 + signal.SIGTERM

    monkeypatch.setattr(Run, "code", code)
    monkeypatch.setattr(StopSignals, "__init__", lambda signals: None)
    monkeypatch.setattr(StopSignals, "received", None, raising=False)
    assert drive(study, clock, 1, {})[0] == EXIT_TERMINATED
    (trial,) = study.state.trials
    assert (trial.state, trial.crashes) == ("waiting", 0)


def test_trials_whose_goal_is_no_number_are_told(tmp_path: Path, clock: Clock) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 2"), clock.monotonic)
    drive(study, clock, 1, {})
    assert {trial.why for trial in study.state.trials} == {"accuracy was no finite number"}
    assert study.state.best is None


def end_with(code: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the trials end so in place of well, once they are at their end."""
    code_of = Run.code
    monkeypatch.setattr(Run, "failure", lambda run, code: why, raising=False)
    monkeypatch.setattr(
        Run, "code", lambda run: code if code_of(run) == 0 and run._job_dir.name != "goal" else code_of(run)
    )


def test_a_trial_that_diverges_has_failed_only_while_no_other_has_a_value(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 9", "max_failed_trials: 2"), clock.monotonic)
    end_with(EXIT_NOT_FINITE, "loss is not finite", monkeypatch)
    trials: dict[str, tuple[float, float | None]] = {f"{number:04d}": (1, 0.5) for number in range(1, 9)}
    code, _ = drive(study, clock, 1, trials)
    assert code == EXIT_FAILED, "none has come to its end"
    assert [trial.state for trial in study.state.trials] == ["failed", "failed", *["stopped"] * 7]


def test_trials_of_a_population_that_diverge_are_stopped_whoever_has_a_value(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = "population: {size: 3, every_steps: 9, quantile: 0.34}"
    study = opened(study_in(tmp_path / "study", SPACE, population, "max_failed_trials: 0"), clock.monotonic)
    end_with(EXIT_NOT_FINITE, "loss is not finite", monkeypatch)
    code, said = drive(study, clock, 3, {})
    assert code == EXIT_FAILED, "none has come to its end"
    assert [trial.state for trial in study.state.trials] == ["stopped"] * 3
    assert said[-1] == "no trial has come to its end"


def test_a_full_disk_stops_the_study_and_fails_no_trial(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 9"), clock.monotonic)
    end_with(EXIT_NOT_SAVED, "no space left", monkeypatch)
    code, said = drive(study, clock, 2, {"0000": (1, 0.5), "0001": (100, 0.5)})
    assert code == EXIT_NOT_SAVED
    assert [trial.state for trial in study.state.trials] == ["waiting", "waiting"]
    assert said.count("no space left: the trials save and stop") == 1
    assert said[-1].startswith("the study goes on with: ")


def test_of_a_population_with_a_slot_for_each_nobody_waits_and_a_fork_without_a_checkpoint_has_failed(
    tmp_path: Path, clock: Clock
) -> None:
    """Trial 2 is the worst of three, and a fork of trial 0 takes its place, whose checkpoint is not there."""
    folder = study_in(tmp_path / "study", SPACE, "population: {size: 3, every_steps: 3, quantile: 0.34}")
    study = opened(folder, clock.monotonic)
    code, said = drive(study, clock, 3, {"0000": (1, 0.9), "0001": (2, 0.8), "0002": (3, 0.1)})
    assert code == 0
    assert not any(judged.verdict == "paused" for trial in study.state.trials for judged in trial.judged.values())
    assert [trial.state for trial in study.state.trials] == ["completed", "completed", "stopped", "failed"]
    fork = study.state.trials[3]
    assert fork.lineage is not None
    assert (fork.lineage.parent, fork.lineage.step, fork.lineage.replaces) == (0, 3, 2)
    assert any("trial 0003 failed: it is to go on from 0000 at step 3, and there is no" in line for line in said)


def test_a_trial_that_went_beyond_its_rung_is_compared_there_before_it_goes_on(tmp_path: Path, clock: Clock) -> None:
    """Whoever ran trial 0 was killed, and its ranks went on to the second rung."""
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 1", "early_stopping: asha"), clock.monotonic)
    trial = study.ask(OTHER).trial
    assert trial is not None and study.rule is not None
    first, second, *_ = study.rule.rungs
    write_job(study.folder.job_dir(trial).path, [record("eval", s, 1.0, accuracy=0.5) for s in (first, second)])
    study.leave(trial, OTHER, Leaving("waiting", second, 0.5))
    drive(study, clock, 1, {"0000": (5, 0.5)})
    assert sorted(trial.judged) == [0], "it pauses at the first rung without a run"
    assert trial.periods[1][1] == trial.periods[1][0]
