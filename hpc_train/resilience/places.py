"""Where each rank runs, in words: looked up when a message is to name it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from hpc_train.jobdir.job_dir import JobDir


class Places(Sequence[str]):
    """Host and process of every rank, by rank. One of another rank is read in environment.json, once.

    So no rank keeps what all of them are called while none is to be named.

    Args:
        size: How many ranks there are. rank: this one, whose place is `own`.
    """

    def __init__(self, job_dir: Path, size: int, rank: int, own: str) -> None:
        self._job_dir, self._size, self._rank, self._own = job_dir, size, rank, own

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, rank: int) -> str: ...
    @overload
    def __getitem__(self, rank: slice) -> list[str]: ...
    def __getitem__(self, rank: int | slice) -> str | list[str]:
        if isinstance(rank, slice):
            return [self[one] for one in range(*rank.indices(self._size))]
        if not 0 <= rank < self._size:
            raise IndexError(rank)
        return self._own if rank == self._rank else self._others.get(rank, "host unknown")

    @cached_property
    def _others(self) -> dict[int, str]:
        entries: Any = JobDir(self._job_dir).environment().get("ranks")
        known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        return {
            entry["rank"]: place_of(str(entry.get("host")), entry.get("pid"))
            for entry in known
            if isinstance(entry.get("rank"), int)
        }


def place_of(host: str, pid: Any) -> str:
    """A place in words."""
    return f"host {host}, pid {pid}"
