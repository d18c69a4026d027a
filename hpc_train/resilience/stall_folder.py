"""The folder where ranks report to each other, through files alone, whether they make progress.

    logs/stall-<run_id>/
      rank-<r>.json      rank r has not moved for half of stall_timeout_secs: host, pid, phase, step, secs, stacks
      answer-<r>.json    rank r moves on, but has seen that another does not
      verdict.txt        why the job was ended; whoever creates it ends the job

Nothing of it exists while all ranks move. Whoever still runs writes its file again and again, so one that has not been
written for long belongs to a rank that runs no more. Ages are differences of the file system's own times.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_train.files import create, open_to_read, read_bytes
from hpc_train.folders import make_folder, remove, remove_folder
from hpc_train.resilience.stall import Report
from hpc_train.telemetry.json_files import MAX_JSON_BYTES, write_json

_STALLED, _ANSWER = "rank", "answer"


class StallFolder:
    """One rank's view of the folder. Every method reads or writes files and may hang if the file system does.

    Args:
        stale_secs: A file older than that, compared with this rank's own, belongs to a rank that runs no more.
    """

    def __init__(self, path: Path, rank: int, stale_secs: float) -> None:
        self.path, self._rank, self._stale_secs = path, rank, stale_secs
        self._wrote = False

    def report(self, fields: Mapping[str, Any]) -> None:
        """Reports that this rank makes no progress."""
        self._write(_STALLED, _ANSWER, fields)

    def answer(self, fields: Mapping[str, Any]) -> None:
        """Reports that this rank moves, if another does not; else takes away what this one has written.

        Once there is a verdict, what led to it stays: ranks that are being ended may move again.
        """
        if not self.path.is_dir() or self.verdict() is not None:
            return
        if any(rank != self._rank for rank in self._ranks(_STALLED)):
            self._write(_ANSWER, _STALLED, fields)
        else:
            self.clean()

    def clean(self) -> None:
        """Takes away what this rank has written, and the folder with it where nothing else is in there."""
        if self._wrote:
            for kind in (_STALLED, _ANSWER):
                remove(self._file(kind, self._rank), missing_ok=True)
            self._wrote = False
        with suppress(OSError):
            remove_folder(self.path)

    def lower(self, most: int) -> int:
        """How many ranks below this one make no progress and could judge in its place; counts to `most`.

        Where the lowest ranks of all do, which is usual, nobody reads the names of all ranks' files.
        """
        now, lowest = self._now(), min(most, self._rank)
        count = sum(self._stands(rank, now) for rank in range(lowest))
        if count < most and lowest < self._rank:
            for rank in self._ranks(_STALLED):
                if count == most:
                    break
                count += lowest <= rank < self._rank and self._stands(rank, now)
        return count

    def _stands(self, rank: int, now: float) -> bool:
        return self._load(self._file(_STALLED, rank), now) is not None

    def read(self) -> dict[int, Report]:
        """What the running ranks report of themselves, `secs` as of now. `report` must have been called just before."""
        reports: dict[int, Report] = {}
        now = self._now()
        for kind in (_ANSWER, _STALLED):
            for rank in self._ranks(kind):
                found = self._load(self._file(kind, rank), now)
                if found is not None and (rank not in reports or found.secs < reports[rank].secs):
                    reports[rank] = found
        return reports

    def claim(self, message: str) -> bool:
        """Writes the verdict; False if there is one."""
        try:
            with open(create(self.path / "verdict.txt"), "w", encoding="utf-8") as file:
                file.write(message + "\n")
        except FileExistsError:
            return False
        return True

    def verdict(self) -> str | None:
        """The verdict of whichever rank has claimed it."""
        with suppress(FileNotFoundError):
            return read_bytes(self.path / "verdict.txt", MAX_JSON_BYTES).decode(errors="replace").strip()
        return None

    def withdraw(self) -> None:
        """Takes the verdict back."""
        remove(self.path / "verdict.txt", missing_ok=True)

    def _write(self, kind: str, instead_of: str, fields: Mapping[str, Any]) -> None:
        path = self._file(kind, self._rank)
        self._wrote = True
        try:
            write_json(path, dict(fields))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            # Not there yet, or another rank has just taken it away.
            make_folder(self.path)
            write_json(path, dict(fields))
        remove(self._file(instead_of, self._rank), missing_ok=True)  # afterwards: a running rank always has a file

    def _file(self, kind: str, rank: int) -> Path:
        return self.path / f"{kind}-{rank}.json"

    def _ranks(self, kind: str) -> list[int]:
        with suppress(FileNotFoundError):
            parts = [name.removesuffix(".json").rpartition("-") for name in os.listdir(self.path)]
            return sorted(int(number) for start, _, number in parts if start == kind and number.isdigit())
        return []

    def _load(self, path: Path, now: float) -> Report | None:
        """A report, aged to now; None if its rank runs no more."""
        try:
            # Opening it makes a network file system ask its server.
            with open_to_read(path) as file:
                age = now - os.fstat(file.fileno()).st_mtime
                report = json.loads(file.read(MAX_JSON_BYTES))
            step, secs = report["step"], float(report["secs"]) + max(0.0, age)
            found = Report(
                int(report["rank"]),
                str(report["host"]),
                int(report["pid"]),
                str(report["phase"]),
                None if step is None else int(step),
                secs,
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return None if age > self._stale_secs else found

    def _now(self) -> float:
        """The file system's time of this rank's own last report."""
        return self._file(_STALLED, self._rank).stat().st_mtime
