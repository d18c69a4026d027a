"""The cases: stall, write and restore at each size, against what does the same work; training steps beside a save."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
from support.timing import Competitor, interleave

from checkpoints.baselines import NO_SAVE, Files, Memory
from checkpoints.models import Size, Subject
from checkpoints.ours import Saves, background_saves
from checkpoints.results import OURS, Results, StepRates
from hpc_train.checkpoint.format import refuse_nan

CHECK, READ, ASSIGN = "check", "read", "assign"


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        step_size: Name of the size that trains while it is saved.
        step_secs: Seconds a repeat of training, and how many A B B A rounds of it.
    """

    sizes: tuple[Size, ...]
    step_size: str
    step_secs: float
    step_rounds: int
    quick: bool = False


def measure(subject: Subject, settings: Settings, folder: Path, results: Results) -> None:
    """All cases of one size. `folder` is empty and may be filled."""
    results.states.append((subject.size.name, subject.nbytes, len(subject.variables)))
    memory, files = Memory(subject), Files(subject, folder)
    _measure_stall(subject, memory, files, folder / "stall", results)
    _measure_next_step(subject, files, folder / "next", results)
    _measure_write(subject, memory, files, folder / "write", results)
    _measure_restore(subject, files, folder / "restore", results)
    if subject.size.name == settings.step_size:
        results.steps.append(_measure_steps(subject, settings, folder / "steps"))


def _measure_stall(subject: Subject, memory: Memory, files: Files, folder: Path, results: Results) -> None:
    """Before each run one training step is made, as one would be: so caches hold what they would hold."""
    with background_saves(subject, folder) as saves:

        def stall() -> int:
            saves.begin()
            return 1

        group = [
            memory.copy(),
            Competitor(OURS, stall, finish=saves.wait),
            memory.copy_by_variable(),
            files.checkpoint_async(),
            files.checkpoint(),
            files.save_weights(),
            files.save_model(),
        ]
        rates = interleave([replace(one, prepare=subject.train) for one in group], subject.size.rounds)
    results.add(subject.size.name, "stall", rates, subject.nbytes)


def _measure_next_step(subject: Subject, files: Files, folder: Path, results: Results) -> None:
    """The stall together with the training step after it, which pays for what a stall has put off."""
    with background_saves(subject, folder) as saves:

        def stall() -> int:
            saves.begin()
            return 1

        group = [
            Competitor(NO_SAVE, lambda: 1),
            Competitor(OURS, stall, finish=saves.wait),
            files.checkpoint_async(),
        ]
        rates = interleave([_and_a_step(one, subject) for one in group], subject.size.rounds)
    results.add(subject.size.name, "stall and next step", rates, subject.nbytes)


def _and_a_step(competitor: Competitor, subject: Subject) -> Competitor:
    def run() -> int:
        work = competitor.run()
        subject.train()
        return work

    return replace(competitor, run=run, prepare=subject.train)


def _measure_write(subject: Subject, memory: Memory, files: Files, folder: Path, results: Results) -> None:
    """From a snapshot to a committed checkpoint, as BackgroundSaver's thread does it."""
    saves = Saves(subject, folder)
    snapshots = [saves.snapshot()]

    def take() -> None:
        snapshots[0] = saves.snapshot()

    def write() -> int:
        refuse_nan(snapshots[0])
        saves.manager.save(snapshots[0])
        return 1

    folder.mkdir()
    group = [
        memory.write(folder),
        Competitor(OURS, write, prepare=take),
        memory.digest(),
        files.checkpoint(synced=True),
    ]
    rates = interleave(group, subject.size.rounds)
    results.add(subject.size.name, "write", rates, subject.nbytes)


def _measure_restore(subject: Subject, files: Files, folder: Path, results: Results) -> None:
    """Into the variables, from files in the page cache."""
    saves = Saves(subject, folder)
    saves.manager.save(saves.snapshot())
    parts: list[tuple[float, float, float]] = []

    def restore() -> int:
        parts.append(saves.restore())
        return 1

    group = [files.read(), Competitor(OURS, restore), files.load_weights()]
    for competitor in group:
        _check_restore(subject, competitor)
    rates = interleave(group, subject.size.rounds)
    results.add(subject.size.name, "restore", rates, subject.nbytes)
    for part, secs in zip((CHECK, READ, ASSIGN), zip(*parts[2:], strict=True), strict=True):  # two warmed up
        results.add_part(subject.size.name, "restore", part, secs, subject.nbytes)


def _check_restore(subject: Subject, competitor: Competitor) -> None:
    before = [v.numpy() for v in subject.variables]
    for variable in subject.variables:
        variable.assign(np.zeros_like(variable))
    competitor.run()
    if not all(np.array_equal(v.numpy(), array) for v, array in zip(subject.variables, before, strict=True)):
        raise RuntimeError(f"{competitor.name}: what was restored is not what was saved: not comparable")


def _measure_steps(subject: Subject, settings: Settings, folder: Path) -> StepRates:
    """A new save begins at the first step boundary after the one before is committed."""
    rates: dict[str, list[float]] = {"alone": [], "writing": [], "saving": [], "beside": []}
    saves_begun = 0
    with background_saves(subject, folder) as saves, Neighbour() as neighbour:

        def begin_if_idle() -> None:
            nonlocal saves_begun
            if saves.idle.is_set():
                saves.wait()
                saves.begin()
                saves_begun += 1

        def saving() -> int:
            steps, training, secs = _train(subject, settings.step_secs, begin_if_idle)
            rates["writing"].append(steps / training)
            rates["saving"].append(steps / secs)
            return steps

        def plain(kind: str) -> Callable[[], int]:
            def run() -> int:
                steps, _, secs = _train(subject, settings.step_secs, lambda: None)
                rates[kind].append(steps / secs)
                return steps

            return run

        group = [
            Competitor("alone", plain("alone")),
            Competitor("saving", saving, finish=saves.wait),
            Competitor("beside", plain("beside"), prepare=neighbour.start, finish=neighbour.end),
        ]
        interleave(group, settings.step_rounds)
    kept = {name: tuple(found[1:]) for name, found in rates.items()}  # the first run warmed up
    return StepRates(subject.size.name, saves=saves_begun, **kept)


class Neighbour:
    """Another process that keeps one core busy and touches no memory: what a busy core costs those beside it.

    A context manager: leaving it ends the process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self) -> None:
        program = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _train(subject: Subject, limit_secs: float, between: Callable[[], None]) -> tuple[int, float, float]:
    """Trains for so long; returns the steps, the seconds in them, and the seconds in all."""
    steps, training, start = 0, 0.0, time.perf_counter()
    while time.perf_counter() - start < limit_secs:
        between()
        before = time.perf_counter()
        subject.train()
        training += time.perf_counter() - before
        steps += 1
    return steps, training, time.perf_counter() - start
