"""A study in a terminal while it runs: a table of what its slots do, below the lines that it reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from hpc_train.jobs.layout import Column, text_table
from hpc_train.telemetry.progress import is_live
from hpc_train.telemetry.status import sound
from hpc_train.text import visible
from hpc_train.tuning.execution.driver import Listeners
from hpc_train.tuning.execution.slot_trial import SlotTrial
from hpc_train.tuning.overview import in_words
from hpc_train.tuning.search.study import Study
from hpc_train.tuning.search.words import lineage, point_in_words

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LOOK_SECS = 0.5


@contextmanager
def study_listeners(study: Study, console: Callable[[], Console], say: Callable[[str], None]) -> Iterator[Listeners]:
    """What a driver of `study` is given: a live table in a terminal, else lines that `say` prints.

    Args:
        console: Makes one on standard output.
    """
    if not is_live():
        yield Listeners(say)
        return
    with StudyTable(console(), study) as table:
        yield table.listeners


class StudyTable:
    """Shows the trials that run, and how the study stands. A context manager."""

    def __init__(self, console: Console, study: Study) -> None:
        self._console, self._study = console, study
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._looked = 0.0

    @property
    def listeners(self) -> Listeners:
        """What a driver is given."""
        return Listeners(self._report, self._look)

    def __enter__(self) -> StudyTable:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _report(self, text: str) -> None:
        self._console.print(visible(text), highlight=False, markup=False, emoji=False)

    def _look(self, running: Sequence[SlotTrial]) -> None:
        if time.monotonic() - self._looked < LOOK_SECS:
            return
        self._looked = time.monotonic()
        self._live.update(self._table(running), refresh=True)

    def _table(self, running: Sequence[SlotTrial]) -> RenderableType:
        goal, best = self._study.goal, self._study.state.best
        rows = []
        for one in sorted(running, key=lambda one: one.slot.number):
            status = sound(one.job_dir.status())
            step, last, value = status.get("step", 0), status.get("max_steps"), one.watch.look().best()
            at = f"{step}/{last}" if last is not None else str(step)
            point = f"{lineage(one.trial)} {point_in_words(one.trial.point)}".lstrip()
            rows.append((str(one.slot.number), one.trial.name, at, "–" if value is None else f"{value:.5g}", point))
        titles = ("slot", self._study.nouns.trial, "step", goal.metric, "")
        columns = [
            Column(title, tuple(Text(visible(row[place])) for row in rows), title in ("slot", "step", goal.metric))
            for place, title in enumerate(titles)
        ]
        found = f"; best: {best.name}, {best.value:.5g}" if best is not None and best.value is not None else ""
        about = Text(visible(in_words(self._study) + found))
        return Group(text_table(columns, self._console.width), about) if rows else about
