"""Progress of training: a live bar in a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

log = logging.getLogger(__name__)

LOG_WIDTH = 160
"""Columns of a log."""
BAR_ROOM = 18
"""Columns of a terminal that the bar's line needs beside texts: a short bar, the time left and what is between."""
HUGE = 1e6
"""A loss from which on its digits say less than its size."""
SHARES = ("input", "compute", "communication", "apply", "checkpoint")
"""What a rank's time is divided into, beside the rest."""
OWN_SECS = "own_secs"
"""The seconds that a step takes a rank alone, without what it waits for: input, other ranks, checkpoints."""
BESIDE = "beside"
"""The seconds beside steps, which are not one of the shares: hooks, records, reports. They are in "other"."""
GAP = "gap"
"""Beside them, and not one of them: the share of the time in which the device waits for the host."""


def is_live(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a bar that redraws itself can be shown on standard output.

    HPC_TRAIN_PROGRESS=bar or =lines decides where it is set. Open MPI gives every rank a terminal of its own,
    wherever its own output goes, and can put a tag before each line: so below a launcher it is the launcher that is
    asked.
    """
    wish = environment.get("HPC_TRAIN_PROGRESS")
    if wish in ("bar", "lines"):
        return wish == "bar"
    if not sys.stdout.isatty():
        return False
    if "OMPI_COMM_WORLD_SIZE" not in environment:
        return True
    try:
        launcher = f"/proc/{os.getppid()}"
        with open(f"{launcher}/cmdline", "rb") as file:
            tagged = b"tag-output" in file.read()
        return not tagged and os.readlink(f"{launcher}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False


class _Console(Console):
    """One that is in no way of a job: what cannot be written is lost."""

    def print(self, *objects: Any, **how: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **how)

    def on_broken_pipe(self) -> None:
        pass


def make_console() -> Console:
    """A console on standard output: as wide as the terminal, or wide enough for a table in a log."""
    return _Console() if is_live() else _Console(width=LOG_WIDTH, force_terminal=False, no_color=True, soft_wrap=True)


class TrainingProgress:
    """Shows step, loss, examples a second and time left. A context manager.

    Args:
        first_step, max_steps: Where training begins and ends; `max_steps` None: end unknown.
        log_steps: Steps between lines where there is no terminal.
    """

    def __init__(self, console: Console, first_step: int, max_steps: int | None, log_steps: int) -> None:
        self._console, self._max_steps, self._log_steps = console, max_steps, log_steps
        self._bar: Progress | None = None
        if is_live():
            self._bar = Progress(
                TextColumn("step {task.completed}/{task.fields[end]}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=40)),
                TextColumn("{task.fields[shown]}", table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                TextColumn("left", table_column=Column(no_wrap=True)),
                console=console,
                expand=True,
            )
            self._task = self._bar.add_task(
                "train", total=max_steps, completed=first_step, shown="loss –", end=max_steps or "?"
            )

    def __enter__(self) -> TrainingProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(
        self,
        step: int,
        loss: float,
        examples_per_sec: float,
        input_wait: float | None,
        secs_left: float | None,
        last: bool,
    ) -> None:
        """Shows that `step` is done."""
        texts = [f"loss {loss:.4f}" if abs(loss) < HUGE else f"loss {loss:.4g}", f"{examples_per_sec:,.0f} examples/s"]
        texts += [] if input_wait is None else [f"input wait {input_wait:.1%}"]
        steps = f"step {step}/{self._max_steps or '?'}"
        if self._bar:
            room = self._console.width - BAR_ROOM - len(steps)
            while len(texts) > 1 and len("  ".join(texts)) > room:
                texts.pop()
            self._bar.update(self._task, completed=step, shown="  ".join(texts))
        elif step % self._log_steps == 0 or last:
            left = [] if secs_left is None else [f"{timedelta(seconds=round(secs_left))} left"]
            log.info("  ".join([steps, *texts, *left]))


class Stopwatch:
    """Counts the seconds that are spent in it. A context manager, to be entered again and again.

    Attributes:
        secs: All of them.
    """

    def __init__(self) -> None:
        self.secs = self._begun = 0.0

    def __enter__(self) -> Stopwatch:
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.secs += time.perf_counter() - self._begun

    def take(self) -> float:
        """Its seconds; it begins again at 0."""
        secs, self.secs = self.secs, 0.0
        return secs


def shares_of(secs: Mapping[str, float]) -> dict[str, float] | None:
    """What part of the time `all` each of the other names took, and "other" the rest; None where there was none.

    "gap" is beside the others.
    """
    if secs["all"] <= 0:
        return None
    shares = {name: part / secs["all"] for name, part in secs.items() if name not in ("all", BESIDE)}
    return {**shares, "other": max(0.0, 1 - sum(share for name, share in shares.items() if name != GAP))}


def own_of(secs: Mapping[str, float]) -> float:
    """The seconds, of those that `shares_of` takes, that a rank has waited for nothing in.

    Without what is beside steps: the chief has more of it than others, and in a hook a rank may wait for others.
    """
    return max(0.0, secs["all"] - sum(secs.get(name, 0.0) for name in ("input", "communication", "checkpoint", BESIDE)))


class TimeShares:
    """Where a rank's time goes: lately, and how much of it on the whole waits for input.

    As with Rate, the first step of a run and what is not training are left out; checkpoints are not.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._mark: tuple[float, float] | None = None
        self._recent, self._rows, self._steps = dict.fromkeys(("all", *SHARES, BESIDE), 0.0), 0, 0
        self._whole = (0.0, 0.0)
        self._gap: float | None = None

    def resume(self, waited_secs: float) -> None:
        """Training begins, or goes on after something else, having waited for input so long in all."""
        self._mark = self._clock(), waited_secs

    def step(
        self,
        rows: int,
        waited_secs: float,
        step_secs: float = 0.0,
        communication_secs: float = 0.0,
        apply_secs: float = 0.0,
        gap_secs: float | None = None,
        beside_secs: float = 0.0,
    ) -> None:
        """A step over `rows` of this rank is done, which took `step_secs`, with its communication and its update.

        Args:
            gap_secs: From the end of the step before to its beginning, where that is known: what is waited for input,
                or done beside steps, while a step is in flight holds nothing up, and does not count.
            beside_secs: What hooks, records and reports have taken since the step before.
        """
        now = self._clock(), waited_secs
        if self._mark is not None:
            secs, waited = now[0] - self._mark[0], now[1] - self._mark[1]
            if gap_secs is not None:
                waited = min(waited, gap_secs)
                beside_secs = min(beside_secs, gap_secs - waited)
                self._gap = (self._gap or 0.0) + gap_secs
            compute = step_secs - communication_secs - apply_secs
            self._add(all=secs, input=waited, compute=compute, communication=communication_secs, apply=apply_secs)
            self._add(beside=beside_secs)
            self._rows, self._steps = self._rows + rows, self._steps + 1
            self._whole = self._whole[0] + secs, self._whole[1] + waited
        self._mark = now

    def checkpoint(self, secs: float) -> None:
        """A checkpoint has held training up so long."""
        self._add(all=secs, checkpoint=secs)

    def _add(self, **secs: float) -> None:
        for name, value in secs.items():
            self._recent[name] += value

    def take_secs(self) -> dict[str, float]:
        """The seconds since they were last taken, all of them and what of them went where; 0 where nothing counted.

        With "gap" where that is known.
        """
        secs, known = self._recent, {} if self._gap is None else {GAP: self._gap}
        self._recent, self._rows, self._steps, self._gap = dict.fromkeys(secs, 0.0), 0, 0, None
        return {**secs, **known}

    def take(self) -> dict[str, float] | None:
        """Examples a second, shares of the time and OWN_SECS since they were last taken; None where no step counted.

        With "gap", the share in which no step ran between two steps, where that is known. It holds what is in "input"
        and most of what is in "other".
        """
        rows, steps, secs = self._rows, self._steps, self.take_secs()
        shares = shares_of(secs)
        if shares is None:
            return None
        return {"examples_per_sec": rows / secs["all"], **shares, **({OWN_SECS: own_of(secs) / steps} if steps else {})}

    @property
    def input_mean(self) -> float | None:
        """The part that waits for input over the whole run."""
        return self._whole[1] / self._whole[0] if self._whole[0] > 0 else None


class Rate:
    """Examples a second: over the whole run, and lately. Time spent outside training is left out.

    The first step is not counted: it builds the graph.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._steps = self._examples = 0
        self._secs = 0.0
        self._mark: float | None = None
        self._recent: float | None = None

    def resume(self) -> None:
        """Training begins, or goes on after something else."""
        self._mark = self._clock()

    def step(self, examples: int) -> None:
        """A step over `examples` rows, of all ranks together, is done."""
        now = self._clock()
        if self._mark is not None:
            secs = now - self._mark
            self._steps, self._examples = self._steps + 1, self._examples + examples
            self._secs += secs
            if secs > 0:
                rate = examples / secs
                self._recent = rate if self._recent is None else 0.98 * self._recent + 0.02 * rate
        self._mark = now

    def pause(self) -> None:
        """Something other than training begins."""
        self._mark = None

    @property
    def mean(self) -> float:
        """Over the whole run; 0 before the second step."""
        return self._examples / self._secs if self._secs else 0.0

    @property
    def recent(self) -> float:
        """A moving average over about the last 50 steps; 0 before the second step."""
        return self._recent or 0.0

    def secs_for(self, steps: int) -> float | None:
        """Seconds that `steps` more steps will take; None before the second step."""
        return steps * self._secs / self._steps if self._steps else None
