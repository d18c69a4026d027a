"""The records of metrics.jsonl, read one line at a time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.files import open_to_read

NOT_METRICS = frozenset({"kind", "step", "time", "secs", "lag_steps", "lag_secs", "checkpoint_time", "what", "last"})
"""What the record of an evaluation holds beside the metrics."""
MAX_LINE_BYTES = 4 << 20
"""Longer lines are passed over; a line with shares of the time for each of 60,000 ranks is shorter."""
MAX_WITHOUT_END = 64 << 20
"""A file with so many bytes and no end of a line was not written by this package; what comes after is not read."""
MAX_STEP, MAX_TIME = 10**15, 10**11
"""Larger numbers are no steps, and no seconds since 1970."""

_KIND = re.compile(r'\{"kind": "([^"\\]*)", ')


@dataclass(frozen=True)
class Record:
    """One line of metrics.jsonl.

    Attributes:
        time: Seconds since 1970.
        values: All that the line holds besides kind, step and time, as it is there.
        elapsed: Seconds that the job had been running by then, without the time between its runs; 0 until a History
            has been made of all records.
        superseded: A later run began at a smaller step, so this was done again.
    """

    kind: str
    step: int
    time: float
    values: Mapping[str, Any]
    elapsed: float = 0.0
    superseded: bool = False

    def number(self, name: str) -> float | None:
        """A value that is a finite number; None where it is none."""
        return as_number(self.values.get(name))

    def text(self, name: str) -> str | None:
        """A value that is a text."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def names(self) -> list[str]:
        """Of the values that are numbers, or null."""
        return [name for name, value in self.values.items() if value is None or _is_number(value)]

    def metrics(self) -> dict[str, float]:
        """Of an evaluation; JSON has null for what was not finite, which is NaN here."""
        found = {name: self.values[name] for name in self.names() if name not in NOT_METRICS}
        return {name: math.nan if value is None else value for name, value in found.items()}


def is_evaluation(kind: str) -> bool:
    """Whether records of this kind are evaluations: "eval", or "eval_" and the name of an evaluation set."""
    return kind == "eval" or kind.startswith("eval_")


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file, without those that are too long; none where it cannot be read."""
    with suppress(OSError), open_to_read(path) as file:
        whole, without_end = True, 0
        while without_end < MAX_WITHOUT_END and (line := file.readline(MAX_LINE_BYTES)):
            began_here, whole = whole, line.endswith(b"\n")
            without_end = 0 if whole else without_end + len(line)
            if began_here and (whole or len(line) < MAX_LINE_BYTES):
                yield line.decode(errors="replace")


def records_of(lines: Iterable[str], wanted: Callable[[str], bool] = lambda kind: True) -> Iterator[Record]:
    """The records in the lines of a metrics.jsonl that are of a `wanted` kind. Pure.

    A line that is no record, such as half of one, is passed over. Lines of other kinds are not parsed, since those
    about many ranks are long.
    """
    for line in lines:
        start = _KIND.match(line)
        if start is None or wanted(start[1]):
            record = _record(line)
            if record is not None and wanted(record.kind):
                yield record


def _record(line: str) -> Record | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    kind = fields.pop("kind", None)
    step, time = as_number(fields.pop("step", None)), as_number(fields.pop("time", None))
    if not isinstance(kind, str) or step is None or time is None or step != int(step):
        return None
    if not (0 <= step < MAX_STEP and 0 <= time < MAX_TIME):
        return None
    return Record(kind, int(step), time, fields)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_number(value: object) -> float | None:
    """A finite number from JSON; None for everything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
            return number if math.isfinite(number) else None
    return None
