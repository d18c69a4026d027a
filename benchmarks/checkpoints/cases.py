"""The cases: stall, write and restore at each size, against what does the same work; training steps beside a save."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from support.records import Record, Sample, records_of
from support.timing import Competitor, Rates, interleave

from checkpoints.baselines import NO_SAVE, Files, Memory
from checkpoints.models import Size, Subject
from checkpoints.ours import Saves, background_saves
from hpc_train.checkpoint.format import refuse_nan

BENCHMARK, OURS = "checkpoint", "hpc_train"
STALL, NEXT_STEP, WRITE, RESTORE, STEPS = "stall", "stall and next step", "write", "restore", "steps"
PARTS = ("check", "read", "assign")
IN_FLIGHT = "a save in flight"


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


def measure(subject: Subject, settings: Settings, folder: Path) -> Iterator[Record]:
    """The records of all cases of one size. `folder` is empty and may be filled."""
    memory, files = Memory(subject), Files(subject, folder)
    yield from _compared(subject, STALL, _measure_stall(subject, memory, files, folder / "stall"))
    yield from _compared(subject, NEXT_STEP, _measure_next_step(subject, files, folder / "next"))
    yield from _compared(subject, WRITE, _measure_write(subject, memory, files, folder / "write"))
    yield from _compared(subject, RESTORE, _measure_restore(subject, files, folder / "restore"))
    if subject.size.name == settings.step_size:
        yield from _step_records(subject, *_measure_steps(subject, settings, folder / "steps"))


def _compared(subject: Subject, what: str, secs: Mapping[str, Sequence[float]]) -> Iterator[Record]:
    """What each way took; ours, and no part of it, is compared with all others."""
    size = subject.size.name
    millis = {way: [1e3 * one for one in own] for way, own in secs.items()}
    others = {way: own for way, own in millis.items() if not way.startswith(OURS)}
    about = {"size": size, "what": what, "bytes": subject.nbytes, "variables": len(subject.variables)}
    for way, own in millis.items():
        config = {**about, "way": way, "gb_per_sec": subject.nbytes / float(np.median(own)) / 1e6}
        yield from records_of(
            BENCHMARK, "ms", [Sample(f"{size} {what}, {way}", own, others if way == OURS else {}, config=config)]
        )


def _secs(rates: Mapping[str, Rates]) -> dict[str, Sequence[float]]:
    return {way: found.secs for way, found in rates.items()}


def _measure_stall(subject: Subject, memory: Memory, files: Files, folder: Path) -> dict[str, Sequence[float]]:
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
        return _secs(interleave([replace(one, prepare=subject.train) for one in group], subject.size.rounds))


def _measure_next_step(subject: Subject, files: Files, folder: Path) -> dict[str, Sequence[float]]:
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
        return _secs(interleave([_and_a_step(one, subject) for one in group], subject.size.rounds))


def _and_a_step(competitor: Competitor, subject: Subject) -> Competitor:
    def run() -> int:
        work = competitor.run()
        subject.train()
        return work

    return replace(competitor, run=run, prepare=subject.train)


def _measure_write(subject: Subject, memory: Memory, files: Files, folder: Path) -> dict[str, Sequence[float]]:
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
    return _secs(interleave(group, subject.size.rounds))


def _measure_restore(subject: Subject, files: Files, folder: Path) -> dict[str, Sequence[float]]:
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
    of_parts = zip(*parts[2:], strict=True)  # two warmed up
    return _secs(rates) | {f"{OURS}: {part}": secs for part, secs in zip(PARTS, of_parts, strict=True)}


def _check_restore(subject: Subject, competitor: Competitor) -> None:
    before = [v.numpy() for v in subject.variables]
    for variable in subject.variables:
        variable.assign(np.zeros_like(variable))
    competitor.run()
    if not all(np.array_equal(v.numpy(), array) for v, array in zip(subject.variables, before, strict=True)):
        raise RuntimeError(f"{competitor.name}: what was restored is not what was saved: not comparable")


def _measure_steps(subject: Subject, settings: Settings, folder: Path) -> tuple[dict[str, Sequence[float]], int]:
    """Steps a second by way, and saves begun. A save begins at the first step after the one before is committed."""
    ways = ("no saves", IN_FLIGHT, f"{IN_FLIGHT} and stalls", "no saves, another process busy")
    rates: dict[str, list[float]] = {way: [] for way in ways}
    saves_begun = 0
    with background_saves(subject, folder) as saves, ExitStack() as beside:

        def begin_if_idle() -> None:
            nonlocal saves_begun
            if saves.idle.is_set():
                saves.wait()
                saves.begin()
                saves_begun += 1

        def saving() -> int:
            steps, training, secs = _train(subject, settings.step_secs, begin_if_idle)
            rates[ways[1]].append(steps / training)
            rates[ways[2]].append(steps / secs)
            return steps

        def plain(way: str) -> Callable[[], int]:
            def run() -> int:
                steps, _, secs = _train(subject, settings.step_secs, lambda: None)
                rates[way].append(steps / secs)
                return steps

            return run

        group = [
            Competitor("alone", plain(ways[0])),
            Competitor("saving", saving, finish=saves.wait),
            Competitor("beside", plain(ways[3]), lambda: _start_neighbour(beside), beside.close),
        ]
        interleave(group, settings.step_rounds)
    return {way: found[1:] for way, found in rates.items()}, saves_begun  # the first run warmed up


def _step_records(subject: Subject, rates: Mapping[str, Sequence[float]], saves: int) -> Iterator[Record]:
    size, (alone, *_) = subject.size.name, rates
    for way, own in rates.items():
        config = {"size": size, "what": STEPS, "way": way, "saves": saves if IN_FLIGHT in way else 0}
        against = {alone: rates[alone]} if way != alone else {}
        yield from records_of(
            BENCHMARK, "steps/s", [Sample(f"{size} training steps, {way}", own, against, config=config)]
        )


def _start_neighbour(stack: ExitStack) -> None:
    """Another process that keeps one core busy and touches no memory, until `stack` closes."""
    program = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    process = stack.enter_context(subprocess.Popen(program, stdout=subprocess.PIPE))
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()


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
