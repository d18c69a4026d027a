"""Runs the parts, each in a process of its own, one after the other; one that fails does not stop the others."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from support.launch import Started, environment
from support.page import Target
from support.records import Record
from support.usage import UsageError, in_short, tell

LIMIT_SECS = 240.0
"""For one part; each takes less than a minute or so."""
IDLE_COLUMNS, COUNTED = (3, 4), 8
"""Columns of /proc/stat: idle, and waiting for a disk (proc_stat(5)); the last two are part of others."""


@dataclass(frozen=True)
class Measured:
    """What a part found.

    Attributes:
        targets: Those that something was measured for.
        left_out: What was not measured, by name, and why; by the part's own name where that is all of it.
        secs: That it took. taken: cores that other processes took meanwhile.
    """

    records: Sequence[Record] = ()
    targets: Sequence[Target] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    secs: float = 0.0
    taken: float = 0.0

    def missed(self) -> Iterator[tuple[Target, str, str]]:
        """All that falls short: the target, and the name and the value of what does not reach it."""
        for target in self.targets:
            yield from ((target, name, value) for name, value, reached in target.measured if not reached)

    @property
    def reached(self) -> bool:
        """Everything was measured, and nothing falls short."""
        return not self.left_out and not any(self.missed())

    @property
    def disturbed(self) -> bool:
        """Other processes took more than the cores that this one may not use anyway, and a quarter of one."""
        return self.taken > (os.cpu_count() or 1) - len(os.sched_getaffinity(0)) + 0.25


class Clocks(NamedTuple):
    """Seconds: by the clock, of all cores that were busy, and of those that this process and its children were.

    Children count, and theirs, once they have ended and were waited for.
    """

    secs: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Clocks:
        """As they are."""
        return cls(time.perf_counter(), busy_secs(Path("/proc/stat").read_text()), sum(os.times()[:4]))

    def taken_by_others(self, later: Clocks) -> float:
        """Cores that other processes, or other virtual machines of this host, took from here to `later`."""
        secs = later.secs - self.secs
        return max(0.0, ((later.busy - self.busy) - (later.own - self.own)) / secs) if secs > 0 else 0.0


def busy_secs(stat: str) -> float:
    """Of all cores together since the machine was started, from the text of /proc/stat."""
    times = [int(word) for word in stat.partition("\n")[0].split()[1 : 1 + COUNTED]]
    return sum(ticks for column, ticks in enumerate(times) if column not in IDLE_COLUMNS) / os.sysconf("SC_CLK_TCK")


def run_all(parts: Sequence[str], run: Callable[[str], Measured]) -> dict[str, Measured]:
    """By part what `run` measured; where it raises, why it could not run."""
    found = {}
    for part in parts:
        tell(part)
        begun = Clocks.now()
        try:
            measured = run(part)
        except (RuntimeError, UsageError) as error:
            measured = Measured(left_out={part: in_short(error)})
        ended = Clocks.now()
        found[part] = replace(measured, secs=ended.secs - begun.secs, taken=begun.taken_by_others(ended))
    return found


def run_apart(part: str, parent: Path | None, limit_secs: float = LIMIT_SECS) -> Measured:
    """Runs a part in a process of its own, in a folder of `parent` that is removed again.

    Raises:
        RuntimeError: It did not end as it should, or took longer than it may.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="quick-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        command = [sys.executable, "-m", "guard.program", part, str(folder)]
        with Started("its process", command, folder, environment(), folder / "part.log") as process:
            process.wait(limit_secs)
        measured: Measured = pickle.loads((folder / "measured").read_bytes())
        return measured
