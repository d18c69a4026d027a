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

from checkpoints.contestants import NO_SAVE, OURS, Files, Memory, Saves, Size, Subject
from hpc_train.checkpoint.format import refuse_nan

BENCHMARK = "checkpoint"
STALL, NEXT_STEP, WRITE, RESTORE, STEPS = "stall", "stall and next step", "write", "restore", "steps"
PARTS = ("check", "read", "assign")
IN_FLIGHT = "a save in flight"
STEP_WAYS = ("no saves", IN_FLIGHT, f"{IN_FLIGHT} and stalls", "no saves, another process busy")


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
    with Saves(subject, folder).in_background() as saves:
        group = [
            memory.copy(),
            saves.stall(),
            memory.copy_by_variable(),
            files.checkpoint_async(),
            files.checkpoint(),
            files.save_weights(),
            files.save_model(),
        ]
        return _secs(interleave([replace(one, prepare=subject.train) for one in group], subject.size.rounds))


def _measure_next_step(subject: Subject, files: Files, folder: Path) -> dict[str, Sequence[float]]:
    """The stall together with the training step after it, which pays for what a stall has put off."""

    def and_a_step(competitor: Competitor) -> Competitor:
        def run() -> None:
            competitor.run()
            subject.train()

        return replace(competitor, run=run, prepare=subject.train)

    with Saves(subject, folder).in_background() as saves:
        group = [Competitor(NO_SAVE, lambda: None), saves.stall(), files.checkpoint_async()]
        return _secs(interleave([and_a_step(one) for one in group], subject.size.rounds))


def _measure_write(subject: Subject, memory: Memory, files: Files, folder: Path) -> dict[str, Sequence[float]]:
    """From a snapshot to a committed checkpoint, as BackgroundSaver's thread does it."""
    saves = Saves(subject, folder)
    snapshots = [saves.snapshot()]

    def take() -> None:
        snapshots[0] = saves.snapshot()

    def write() -> None:
        refuse_nan(snapshots[0])
        saves.manager.save(snapshots[0])

    folder.mkdir()
    ours = Competitor(OURS, write, prepare=take)
    return _secs(
        interleave([memory.write(folder), ours, memory.digest(), files.checkpoint(synced=True)], subject.size.rounds)
    )


def _measure_restore(subject: Subject, files: Files, folder: Path) -> dict[str, Sequence[float]]:
    """Into the variables, from files in the page cache."""
    saves = Saves(subject, folder)
    saves.manager.save(saves.snapshot())
    parts: list[tuple[float, float, float]] = []
    group = [files.read(), Competitor(OURS, lambda: parts.append(saves.restore())), files.load_weights()]
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


def _measure_steps(subject: Subject, settings: Settings, folder: Path) -> tuple[dict[str, list[float]], int]:
    """Steps a second by way, and saves begun. A save begins at the first step after the one before is committed."""
    rates: dict[str, list[float]] = {way: [] for way in STEP_WAYS}
    with Saves(subject, folder).in_background() as saves, ExitStack() as beside:
        begun: list[int] = []

        def begin_if_idle() -> None:
            if saves.idle.is_set():
                saves.wait()
                saves.begin()
                begun.append(1)

        def way(name: str, between: Callable[[], None], in_steps: str | None = None) -> Callable[[], int]:
            """`in_steps`: the way whose clock stops between the steps."""

            def run() -> int:
                steps, training, secs = _train(subject, settings.step_secs, between)
                rates[name].append(steps / secs)
                if in_steps:
                    rates[in_steps].append(steps / training)
                return steps

            return run

        alone, saving, stalled, busy = STEP_WAYS
        group = [
            Competitor("alone", way(alone, lambda: None)),
            Competitor("saving", way(stalled, begin_if_idle, saving), finish=saves.wait),
            Competitor("beside", way(busy, lambda: None), lambda: _start_neighbour(beside), beside.close),
        ]
        interleave(group, settings.step_rounds)
    return {way: found[1:] for way, found in rates.items()}, len(begun)  # the first run warmed up


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
