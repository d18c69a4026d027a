"""Which ranks have been lost, as their guards have left word of it, and which have left by themselves.

    logs/lost-<run_id>/
      gone-<r>           rank r is about to be noted as lost
      rank-<r>.json      it is lost: rank, signal, time
      left-<r>           it has done its part; what it has measured, by name

Nothing of it stays of a job that lost no rank: the job's end takes it away, or its next start.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from hpc_train.files import replace_text
from hpc_train.folders import make_folder, remove, remove_folder
from hpc_train.telemetry.json_files import read_json

PREFIX = "lost-"
"""Of the folder's name; a run's identity follows."""
LOOK_SECS = 1.0
"""Between two looks into the folder."""


@dataclass(frozen=True)
class LostRank:
    """A rank that was killed by a signal: its number, and the signal's name."""

    rank: int
    signal: str


def note_left(folder: Path, rank: int, measured: Mapping[str, float]) -> None:
    """This rank has done its part, and need not answer any more. No error where the chief was quicker to end."""
    with suppress(OSError):
        replace_text(folder / f"left-{rank}", json.dumps(dict(measured)) + "\n", to_disk=False)


def measured_by(folder: Path, rank: int) -> dict[str, float]:
    """What this rank has left word of; empty where it has not."""
    found = read_json(folder / f"left-{rank}")
    return {name: float(value) for name, value in found.items() if isinstance(value, float) and isfinite(value)}


def gone_ranks(folder: Path) -> set[int]:
    """Those that are lost or have left, so that nobody is to wait for them. For any rank."""
    with suppress(FileNotFoundError):
        found = (re.fullmatch(r"rank-([0-9]+)\.json|left-([0-9]+)", name) for name in os.listdir(folder))
        return {int(match[1] or match[2]) for match in found if match}
    return set()


def forget_left(folder: Path, over: bool = False) -> None:
    """Takes the folder away where nobody was lost, else what is of no use any more. For the chief, at the end.

    Args:
        over: Whether the run is over, and no guard of it looks into the folder any more.
    """
    with suppress(OSError):
        names = os.listdir(folder)
        idle = ("left-", "gone-") if over and not any(name.startswith("rank-") for name in names) else ("left-",)
        for name in names:
            if name.startswith(idle):
                remove(folder / name, missing_ok=True)
        remove_folder(folder)


def forget_earlier(logs: Path) -> None:
    """The same of all earlier runs, which may have ended before they could. For the chief, before it makes its own."""
    with suppress(OSError):
        for name in os.listdir(logs):
            if re.fullmatch(rf"{PREFIX}[0-9a-f]+", name):
                forget_left(logs / name, over=True)


class LostRanks:
    """The folder in which guards note ranks that were killed; see guard.py. Makes it. For the chief.

    Attributes:
        known: Those that were found.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.known = folder, list[LostRank]()
        forget_earlier(folder.parent)
        make_folder(folder)
        self._next = 0.0

    def look(self) -> list[LostRank]:
        """Those that were lost since the last look; looks once a second, whoever asks more often."""
        if (now := time.monotonic()) < self._next:
            return []
        self._next = now + LOOK_SECS
        found = []
        with suppress(OSError):
            before = {lost.rank for lost in self.known}
            for name in sorted(os.listdir(self.folder)):
                number = name.removeprefix("rank-").removesuffix(".json")
                if name == f"rank-{number}.json" and number.isdecimal() and int(number) not in before:
                    about = read_json(self.folder / name)
                    found.append(LostRank(int(number), str(about.get("signal", "a signal"))))
        self.known += found
        return found
