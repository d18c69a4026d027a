"""Studies that are disturbed at random moments: what is done to their processes, and what must be left of them then."""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import psutil

from hpc_train.processes import with_variable
from hpc_train.tuning.begin import open_study
from hpc_train.tuning.execution.trial_run import DRIVER_VARIABLE
from hpc_train.tuning.search.decisions import Judged, Left, Suggested
from hpc_train.tuning.search.folder import TRIALS as TRIALS_FOLDER
from hpc_train.tuning.search.folder import StudyFolder
from hpc_train.tuning.search.state import Trial
from hpc_train.tuning.search.study import Study
from tests.slurm.jobs import make_folder, set_step_secs, write_job
from tests.studies import check_history, decisions_in, files_of
from tests.support import BIN, LIMIT_SECS, records_of, run_program, wait_for

EVERY, STEPS, STEP_SECS = 10, 90, 0.02
"""Steps between two checkpoints, steps of a trial, and how long one takes at least."""
TRIALS = 9
PAUSE, MOST_SECS = 1.5, 5.0
"""Between two kills, on average: so many times what the study took to begin, for it is to get somewhere; and no more
seconds than that, whatever else the machine did meanwhile.
"""
ASHA = {"early_stopping": {"asha": {"first_rung": EVERY, "factor": 3}}}
SHAPES: dict[str, tuple[int, dict[str, Any]]] = {"asha": (1, ASHA), "random": (1, {}), "two slots": (2, ASHA)}
"""By its name, how many slots a study has, and what is in its `tune`."""


def write_study(folder: Path, **tune: Any) -> None:
    """A job with a study, in the new `folder`: of steps that take a while, each of which is recorded."""
    make_folder(folder)
    section = {
        "goal": {"metric": "loss", "mode": "min"},
        "max_trials": TRIALS,
        "max_failed_trials": TRIALS,
        "space": {"params.units": {"int": [2, 64]}},
        **tune,
    }
    run = {"save_checkpoints_steps": EVERY, "save_summary_steps": 1, "tf_random_seed": 1, "report": False}
    ends = {"start_delay_secs": 0, "eval_every_checkpoint": True, "exporters": {}, "steps": None}
    more = {"run": run, "eval": ends, "resources": {"ranks_per_node": 1}, "tune": section}
    write_job(folder, max_steps=STEPS, save_checkpoints_steps=EVERY, **more)
    set_step_secs(folder, STEP_SECS)


@dataclass
class Tally:
    """What was counted.

    Attributes:
        kills: By what was done.
        starts: Of the study, the first one included.
        spared: Kills that were left out: a second one in a row, without a newer checkpoint, fails a trial.
        failed: Trials that two kills in a row have failed all the same.
        temporary: Files that a process which was killed had begun to write, in job-dirs.
        steps, again: That were trained, and those of them that had been trained after a last checkpoint already.
    """

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    spared: int = 0
    studies: int = 0
    trials: int = 0
    failed: int = 0
    steps: int = 0
    again: int = 0
    temporary: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        return (
            f"{self.studies} studies, {self.starts} starts, {self.kills.total()} kills "
            f"({kinds}; {self.spared} spared), "
            f"{self.trials} trials, of which {self.failed} failed by two kills in a row, "
            f"{self.steps} steps, of which {self.again} were lost before and made again, "
            f"{self.temporary} temporary files in job-dirs"
        )


class Place(ABC):
    """Where a study runs, and is started again. A context manager, at whose end nothing of it runs any more.

    Attributes:
        kinds: By name, what can be done to it; False: there is nothing to do that to just now.
        crashes: Those that a trial is blamed for.
        begin_secs: How much longer it takes to begin than a study by itself does.
        poll_secs: Between two looks.
        environment: Of a driver, beside what tests have.
    """

    study: StudyFolder
    kinds: Mapping[str, Callable[[], bool]]
    crashes: frozenset[str]
    begin_secs: float
    poll_secs: float
    environment: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def go_on(self, tally: Tally) -> bool:
        """Starts again what has ended; False: the study is over."""

    @abstractmethod
    def end(self) -> None:
        """Ends what there still is of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for process in processes_of(self.study.path):
            with suppress(psutil.Error):
                process.kill()


def disturb_studies(
    folder: Path,
    shapes: Sequence[str],
    make: Callable[[Path, str, int, random.Random], Place],
    seed: int,
    secs: float | None,
    report: Callable[[str], None],
) -> Tally:
    """Disturbs one study after the other until `secs` are over, at least one; each is compared when it is over.

    Args:
        secs: None: one study, for as long as it takes to begin eight times.
        make: Given a folder with job.yaml, the study's name, its slots, and what draws.
        report: Gets a line after each.
    """
    wholes = {shape: _undisturbed(folder / shape, *SHAPES[shape]) for shape in shapes}
    began = max(_begin_secs(whole) for whole in wholes.values() if whole is not None)
    tally, end = Tally(), time.monotonic() + (8 * began if secs is None else secs)
    while not tally.studies or (secs is not None and time.monotonic() < end):
        shape = shapes[tally.studies % len(shapes)]
        chance = random.Random(f"{seed}/{tally.studies}")
        with make(folder / shape, f"disturbed-{tally.studies}", SHAPES[shape][0], chance) as place:
            _disturb(place, chance, place.begin_secs + min(PAUSE * began, MOST_SECS), end, tally)
            _sweep(place)
            study = _check_study(place.study, tally)
        if (whole := wholes[shape]) is not None:
            _check_same(study, whole, report)
        report(f"{shape}: {tally}")
    return tally


def _undisturbed(folder: Path, slots: int, tune: Mapping[str, Any]) -> Study | None:
    """A study in one slot that nobody has disturbed; None where there are more, and none to be compared with."""
    write_study(folder, **tune)
    if slots > 1:
        return None
    words = ["tune", "job.yaml", "--study", "runs/whole", "--parallel", "1"]
    done = run_program([str(BIN / "hpc-train"), *words], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return _check_study(StudyFolder(folder / "runs/whole"), Tally())


def _begin_secs(study: Study) -> float:
    """How long it took from the beginning to the first checkpoint."""
    (first, *_) = records_of(study.folder.job_dir(study.state.trials[0]).path, "checkpoint")
    return float(first["time"]) - study.folder.settings().created


def _disturb(place: Place, chance: random.Random, pause: float, end: float, tally: Tally) -> None:
    """Runs a study to its end, which is disturbed every `pause` seconds or so until the time `end`.

    Every other time its trials have to get on first, as they would not where it takes longer than that to begin.
    """
    names, seen = sorted(place.kinds), 0
    strike: float | None = time.monotonic() + chance.uniform(0, pause)
    while place.go_on(tally):
        now = time.monotonic()
        assert now < end + LIMIT_SECS, "the study does not come to its end"
        if strike is None and _measured(place.study) > seen:
            strike = now + chance.uniform(0, pause)
        if strike is not None and strike < now < end:
            for name in chance.sample(names, len(names)):  # until there is something to do that to
                if name in place.crashes and _is_at_stake(place.study):
                    tally.spared += 1
                elif place.kinds[name]():
                    tally.kills[name] += 1
                    break
            seen = _measured(place.study)
            strike = now + chance.uniform(0, 2 * pause) if chance.random() < 0.5 else None
        time.sleep(place.poll_secs)


def _measured(folder: StudyFolder) -> int:
    """How much there is of what trials have measured, in bytes."""
    return sum(path.stat().st_size for path in folder.trials.glob("*/metrics.jsonl"))


def _sweep(place: Place) -> None:
    """Has a driver look at what those before it have left, as one does later."""
    folder = place.study
    for left in (*folder.drivers.iterdir(), *folder.decisions.glob(".*")):
        os.utime(left, (0, 0))
    done = run_program([str(BIN / "hpc-train"), "tune", str(folder.path)], folder.path.parent, **place.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(folder.drivers.iterdir())


def _is_at_stake(folder: StudyFolder) -> bool:
    """Whether a trial that runs has crashed, and not saved since."""
    if not folder.is_one():
        return False
    study = open_study(folder)[0]
    return any(t.crashes and _step(study, t) <= t.step for t in study.state.of("running", "waiting"))


def _step(study: Study, trial: Trial) -> int:
    return max(study.folder.job_dir(trial).checkpoints(), default=0)


def _check_study(folder: StudyFolder, tally: Tally) -> Study:
    """What is so of every study: no trial is lost, doubled or trained anew, and nothing is left behind."""
    list(files_of(folder))
    check_history(folder, TRIALS)
    study = open_study(folder)[0]
    states = Counter(trial.state for trial in study.state.trials)
    assert set(states) <= {"completed", "paused", "failed"}, states
    for trial in study.state.of("failed"):
        ends = [d for d in decisions_in(folder.decisions) if isinstance(d, Left) and d.trial == trial.number][-2:]
        assert [d.crashed for d in ends] == [True, True], f"{trial.name}: {trial.why}"
        assert ends[0].step == ends[1].step, f"{trial.name}: {trial.why}"
    tally.studies, tally.trials, tally.failed = (
        tally.studies + 1,
        tally.trials + TRIALS,
        tally.failed + states["failed"],
    )
    for trial in study.state.trials:
        steps, again = _trained(folder.job_dir(trial).path, trial.state == "completed")
        tally.steps, tally.again = tally.steps + steps, tally.again + again
    drivers = {decision.driver for decision in decisions_in(folder.decisions) if hasattr(decision, "driver")}
    wait_for(lambda: not processes_of(folder.path, drivers), lambda: f"left: {processes_of(folder.path, drivers)}", 60)
    temporary = [path.relative_to(folder.path) for path in folder.path.rglob(".*")]
    tally.temporary += len(temporary)
    assert all(path.parts[0] == TRIALS_FOLDER for path in temporary), temporary  # where `hpc-train clean` removes it
    return study


def _trained(job_dir: Path, to_its_end: bool) -> tuple[int, int]:
    """The steps that the runs of a trial have trained, and how many of them again."""
    seen: set[int] = set()
    saved = steps = again = begin = 0
    for record in records_of(job_dir, "start", "train", "checkpoint"):
        step = record["step"]
        if record["kind"] == "start":
            assert step >= saved, f"{job_dir}: begins at {step}, and had saved {saved}"
            begin = step
        elif record["kind"] == "checkpoint":
            saved = max(saved, step)
        else:
            assert step > begin, f"{job_dir}: step {step} of a run that begins at {begin}"
            steps, again = steps + 1, again + (step in seen)
            seen.add(step)
    assert seen == set(range(1, max(seen, default=0) + 1)), f"{job_dir}: steps were left out"
    assert not to_its_end or len(seen) == STEPS, f"{job_dir}: {len(seen)} steps"
    return steps, again


def _check_same(study: Study, whole: Study, report: Callable[[str], None]) -> None:
    """A study of one slot decides what one does that nobody has disturbed; its trials measure the same to the bit."""
    found, wanted = (_history(one) for one in (study, whole))
    failed = {trial.number for trial in study.state.of("failed")}
    assert found["points"] == wanted["points"]
    if failed and study.rule is not None:
        report(f"trials {sorted(failed)} have failed by two kills in a row, by which others are compared otherwise")
        return
    assert found["judged"] == wanted["judged"]
    for ours, theirs in zip(study.state.trials, whole.state.trials, strict=True):
        if ours.number in failed:
            report(f"trial {ours.number} has failed by two kills in a row, and is not compared")
            continue
        assert ours.state == theirs.state, ours.name
        assert ours.state != "completed" or ours.value == theirs.value, ours.name
        one, other = (s.folder.job_dir(ours).evaluations().get("eval", {}) for s in (study, whole))
        assert ours.state != "completed" or set(one) == set(other), ours.name
        assert {step: one[step] for step in one if step in other} == {
            step: other[step] for step in other if step in one
        }
    if not failed:
        ours, theirs = study.state.best, whole.state.best
        assert ours is not None
        assert theirs is not None
        assert (ours.number, ours.value) == (theirs.number, theirs.value)


def _history(study: Study) -> dict[str, list[Any]]:
    decisions = decisions_in(study.folder.decisions)
    return {
        "points": [(d.trial, d.point) for d in decisions if isinstance(d, Suggested)],
        "judged": [(d.trial, d.rung, d.step, d.value, d.verdict) for d in decisions if isinstance(d, Judged)],
    }


def processes_of(study: Path, drivers: Collection[str] = ()) -> list[psutil.Process]:
    """The processes of a study on this machine: those that name its folder, and what its `drivers` have started."""
    found = {process.pid: process for those in with_variable(DRIVER_VARIABLE, drivers).values() for process in those}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(study) in " ".join(process.cmdline()):
                found[process.pid] = process
        except psutil.Error:
            continue
    return list(found.values())


def ranks_of(study: Path) -> list[psutil.Process]:
    """Those that train, or wait for something to train."""
    kept, fresh = {"hpc_train.tuning.execution.ranks"}, {"hpc_train", "train"}
    return [p for p in processes_of(study) if _name(p).startswith("python") and (_has(p, kept) or _has(p, fresh))]


def launchers_of(study: Path) -> list[psutil.Process]:
    """mpirun, and `hpc-train launch`."""
    return [p for p in processes_of(study) if _name(p) == "mpirun" or _has(p, {"hpc_train", "launch"})]


def drivers_of(study: Path) -> list[psutil.Process]:
    """`hpc-train tune`."""
    return [p for p in processes_of(study) if _name(p).startswith("python") and _has(p, {"tune"})]


def _has(process: psutil.Process, words: set[str]) -> bool:
    with suppress(psutil.Error):
        return words <= set(process.cmdline())
    return False


def _name(process: psutil.Process) -> str:
    """Of the program that it runs."""
    with suppress(psutil.Error, IndexError):
        return Path(process.cmdline()[0]).name
    return ""
