"""The checkpoints of one job-dir: saved by rename, found, loaded, and thinned out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hpc_train.checkpoint.format import Snapshot, read_progress, read_snapshot, sync_to_disk, write_snapshot
from hpc_train.checkpoint.layout import (
    checkpoint_name,
    expired,
    is_temporary,
    replaced_name,
    replaced_step,
    step_of,
    temporary_name,
)
from hpc_train.data.sampler import DataOrder, DataProgress


class CheckpointManager:
    """Saves and loads checkpoints under `folder`; for the chief alone. Making one touches nothing on disk."""

    def __init__(self, folder: Path, keep_max: int) -> None:
        self._folder, self._keep_max = folder, keep_max

    def path(self, step: int) -> Path:
        """Where the checkpoint of `step` lies."""
        return self._folder / checkpoint_name(step)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(step for path in self._folder.iterdir() if (step := step_of(path.name)) is not None)

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, or None where there is none."""
        return max(self.steps(), default=None)

    def load(self, step: int) -> Snapshot:
        """Reads the checkpoint of `step`; OSError where it cannot be read."""
        return read_snapshot(self.path(step))

    def progress(self, step: int) -> tuple[DataProgress, DataOrder | None]:
        """How far the checkpoint of `step` had read its data, and in which order; OSError where it cannot be read."""
        return read_progress(self.path(step))

    def clean(self) -> None:
        """Removes what saves that were cut short left behind; one cut short while it replaced another is undone."""
        if self._folder.is_dir():
            for path in sorted(self._folder.iterdir()):
                step = replaced_step(path.name)
                if step is not None and not self.path(step).exists():
                    path.rename(self.path(step))
                elif is_temporary(path.name):
                    shutil.rmtree(path, ignore_errors=True)

    def save(self, snapshot: Snapshot) -> Path:
        """Writes `snapshot`, commits it by renaming its folder, then removes checkpoints beyond the newest ones."""
        owner = f"{os.uname().nodename}-{os.getpid()}"
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary, final = self._folder / temporary_name(snapshot.step, owner), self.path(snapshot.step)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write_snapshot(temporary, snapshot)
        if final.exists():
            replaced = self._folder / replaced_name(snapshot.step, owner)
            final.rename(replaced)
            temporary.rename(final)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            temporary.rename(final)
        sync_to_disk(self._folder)
        for step in expired(self.steps(), self._keep_max):
            shutil.rmtree(self.path(step), ignore_errors=True)
        return final
