"""Faults made to happen: errors and deaths in system calls, and programs of the checkpoint layer alone."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hpc_train.checkpoint.format import Snapshot
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from tests.support import LIMIT_SECS


@dataclass(frozen=True)
class Injector:
    """The rules of site/inject.c, which says what one is, and the file in which it tells what it did."""

    log: Path

    def env(self, *rules: str, rank: int | None = None) -> dict[str, str]:
        """The environment of a process in which `rules` hold; of `rank` alone, where one is given."""
        env = {"INJECT": ";".join(rules), "INJECT_LOG": str(self.log)}
        return env if rank is None else {**env, "INJECT_RANK": str(rank)}

    def struck(self) -> list[tuple[str, str, str]]:
        """Call, path and action of each fault since the last time this was asked."""
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines()
        self.log.unlink()
        return [(line.split(" ", 1)[0], *line.split(" ", 1)[1].rsplit(" ", 1)) for line in lines]


def namespace(kind: str, preparation: str) -> list[str]:
    """The words before those of a command that is to run in a namespace of its own, once `preparation` (sh) is done.

    The test is skipped where that is not allowed (no root), except where CI=true.

    Args:
        kind: An option of unshare: --uts for another host name, --mount for other file systems.
    """
    words = ["unshare", kind, "sh", "-c", f'{preparation} && exec "$@"', "sh"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=LIMIT_SECS)
    if tried.returncode != 0:
        reason = f"no namespace of its own: {tried.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return words


def snapshot_of(step: int) -> Snapshot:
    """A snapshot that tells its step in every array; some variables are empty, some larger than HDF5's buffers."""
    order = DataOrder(7, "global", 1000, "ab12")
    model = {
        "dense/kernel": np.full((300, 100), step, np.float32),
        "dense/bias": np.full(100, -step, np.float64),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(step, np.int64),
    }
    optimizer = {"adam/iteration": np.array(step, np.int64), "adam/momentum": np.full((300, 100), step + 0.5)}
    rng = {"python": np.full((2, 5), step, np.uint32)}
    return Snapshot(model, optimizer, DataProgress(step, 64 * step, ((0, 64),)), order, 2, step + 0.5, rng, 1)


def assert_is_snapshot(found: Snapshot, step: int) -> None:
    """Whether a snapshot that was read is `snapshot_of(step)`, to the bit."""
    wanted = snapshot_of(step)
    for kind in ("model", "optimizer", "rng"):
        ours, theirs = getattr(found, kind), getattr(wanted, kind)
        assert list(ours) == list(theirs)
        for name, array in theirs.items():
            assert ours[name].dtype == array.dtype
            assert ours[name].tobytes() == array.tobytes(), f"{kind}/{name}"
    assert (found.progress, found.order, found.time) == (wanted.progress, wanted.order, wanted.time)


def leftovers(checkpoints: Path) -> list[str]:
    """What a save that was cut short has left in a folder of checkpoints."""
    return [path.name for path in checkpoints.iterdir() if path.name.startswith(".")]
