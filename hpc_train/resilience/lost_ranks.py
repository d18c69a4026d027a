"""Which ranks have been lost, as their guards have left word of it. For the chief."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_train.folders import make_folder
from hpc_train.telemetry.json_files import read_json

LOOK_SECS = 1.0
"""Between two looks into the folder."""


@dataclass(frozen=True)
class LostRank:
    """A rank that was killed by a signal: its number, and the signal's name."""

    rank: int
    signal: str


class LostRanks:
    """The folder in which guards note ranks that were killed; see guard.py. Makes it.

    Attributes:
        known: Those that were found.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.known = folder, list[LostRank]()
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
