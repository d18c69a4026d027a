"""What ranks tell the script that started them: a file of one JSON object a line, and reading it while it grows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_train.distributed.world import World

SETTINGS = (
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "OMPI_MCA_mpi_yield_when_idle",
    "OMP_NUM_THREADS",
    "MALLOC_MMAP_THRESHOLD_",
)
"""Told where they are set: they decide on the figures."""


class Told:
    """The chief's file; the first line says what the ranks are. Collective, but for `measured` and `left_out`.

    Args:
        about: More of that, such as the device.
    """

    def __init__(self, world: World, path: Path, **about: object) -> None:
        self._world, self._path = world, path
        places = world.all_gather([world.local_rank, world.local_size])
        first = {
            "nodes": sum(local_rank == 0 for local_rank, _ in places),
            "ranks_per_node": max(local_size for _, local_size in places),
            "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
            **about,
        }
        self._write({"about": first})

    def first_reason(self, reason: str | None) -> str | None:
        """The reason of the lowest rank that has one, on all ranks."""
        return next((told for told in self._world.all_gather(reason) if told), None)

    def measured(self, operation: str, nbytes: int, ways: Mapping[str, Mapping[str, object]]) -> None:
        """Writes what `take_turns` gave."""
        self._write({"operation": operation, "bytes": nbytes, "ways": ways})

    def left_out(self, operation: str, nbytes: int, reason: str) -> None:
        """Writes why a size is not measured."""
        self._write({"operation": operation, "bytes": nbytes, "left_out": reason})

    def _write(self, told: Mapping[str, Any]) -> None:
        if self._world.is_chief:
            with open(self._path, "a") as file:
                file.write(json.dumps(told) + "\n")


class Follower:
    """Reads the file of a `Told` as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[dict[str, Any]]:
        """What was written since the last call; a line that is not whole waits for the next."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
