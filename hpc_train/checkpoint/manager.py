"""The checkpoints of one job-dir: saved by rename, found, checked, loaded, and thinned out."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hpc_train.checkpoint import names
from hpc_train.checkpoint.best import Best, best_in
from hpc_train.checkpoint.disk_io import Moved, idle, retried, sync_to_disk
from hpc_train.checkpoint.format import (
    Snapshot,
    read_parts,
    read_progress,
    read_settings,
    read_snapshot,
    write_checkpoint,
)
from hpc_train.checkpoint.manifest import MANIFEST_FILE, STATE_FILE, DamagedError, Manifest, check, read_manifest
from hpc_train.checkpoint.names import Retention
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from hpc_train.distributed.share import Share
from hpc_train.files import link_new, open_regular, replace_text
from hpc_train.folders import make_folder, remove, remove_tree, rename
from hpc_train.jobdir.paths import checkpoint_name, checkpoint_steps
from hpc_train.telemetry.json_files import load_json

BEST_FILE = "best.json"


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint, and the newer ones that are not whole, each with the reason."""

    step: int | None
    damaged: tuple[tuple[int, str], ...]


class CheckpointManager:
    """Saves and loads checkpoints under `folder`; for the chief alone. Making one touches nothing on disk.

    Attributes:
        wanted: Gives steps of checkpoints that are not to be removed, whatever retention says. Any thread may ask.
    """

    def __init__(self, folder: Path, retention: Retention) -> None:
        self._folder, self._retention = folder, retention
        self.wanted: Callable[[], Collection[int]] = tuple

    def path(self, step: int) -> Path:
        """Where the checkpoint of `step` lies."""
        return self._folder / checkpoint_name(step)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, oldest first."""
        return checkpoint_steps(self._folder)

    def set_aside(self) -> list[Path]:
        """The damaged checkpoints that were set aside."""
        return [self._folder / name for name in self._names() if names.is_damaged(name)]

    def _names(self) -> list[str]:
        return sorted(os.listdir(self._folder)) if self._folder.is_dir() else []

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, whole or not, or None where there is none."""
        return max(self.steps(), default=None)

    def find_whole(self, moved: Moved = idle) -> Found:
        """Looks for the newest whole checkpoint, reading each byte; changes nothing.

        Looks at one whose replacement was cut short, too (see `clean`). A lasting EIO counts as damage: one bad place
        on a disk.

        Raises:
            OSError: One cannot be read for another reason. FormatError: another version wrote it.
        """
        damaged: list[tuple[int, str]] = []
        candidates = {step: self.path(step) for step in self.steps()}
        for name in self._names():
            step = names.replaced_step(name)
            if step is not None:
                candidates.setdefault(step, self._folder / name)
        for step in sorted(candidates, reverse=True):
            try:
                retried(partial(check, candidates[step], step, moved=moved))
                return Found(step, tuple(damaged))
            except (DamagedError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EIO:
                    raise
                damaged.append((step, str(error)))
        return Found(None, tuple(damaged))

    def check(self, step: int, digests: bool) -> Manifest:
        """Whether the checkpoint of `step` is whole; see manifest.check."""
        try:
            with self.reading(step) as folder:
                return check(folder, step, digests)
        except FileNotFoundError:
            return check(self.path(step), step, digests)

    def load(self, step: int, left: Collection[str] = ()) -> Snapshot:
        """Reads the checkpoint of `step`, but for what is `left`; OSError or DamagedError where it cannot be read."""
        with self.reading(step) as folder:
            return retried(lambda: read_snapshot(folder, left))

    def load_parts(
        self, step: int, wanted: Mapping[str, tuple[str, Share | None]], take: Callable[[str, np.ndarray], None]
    ) -> None:
        """Calls `take` with each part that is `wanted` of the checkpoint of `step`, see read_parts; raises as `load`.

        With the same ones again after an error that may pass.
        """

        def read() -> None:
            for name, part in read_parts(folder, wanted):
                take(name, part)
                del part  # before the next one is read

        with self.reading(step) as folder:
            retried(read)

    def progress(self, step: int) -> tuple[DataProgress, DataOrder | None]:
        """How far the checkpoint of `step` had read its data, and in which order; raises as `load`."""
        return retried(lambda: read_progress(self.path(step)))

    def settings(self, step: int) -> dict[str, str] | None:
        """What the run that wrote the checkpoint of `step` was asked for, None where that is unknown; as `load`."""
        return retried(lambda: read_settings(self.path(step)))

    @contextmanager
    def reading(self, step: int) -> Iterator[Path]:
        """Keeps the checkpoint of `step` from being removed meanwhile, by any process; gives its folder.

        A lock on its manifest, shared by readers; on a file system without locks it protects nothing.

        Raises:
            FileNotFoundError: There is no such checkpoint, or it is being removed.
        """
        with self._locked(step, os.O_RDONLY, fcntl.LOCK_SH):
            yield self.path(step)

    @contextmanager
    def _locked(self, step: int, flags: int, lock: int) -> Iterator[None]:
        path = self.path(step)
        descriptor = open_regular(path / MANIFEST_FILE, flags, follow=flags == os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FileNotFoundError(f"{path}: is being removed") from None
            except OSError:
                pass
            yield
        finally:
            os.close(descriptor)

    def clean(self) -> None:
        """Removes what saves that were cut short left behind; one cut short while it replaced another is undone."""
        for name in self._names():
            if self._is_replaced(name) and (step := names.replaced_step(name)) is not None:
                rename(self._folder / name, self.path(step))
        for path in self.left_over():
            remove_tree(path)

    def left_over(self) -> list[Path]:
        """What `clean` removes."""
        return [
            self._folder / name for name in self._names() if names.is_temporary(name) and not self._is_replaced(name)
        ]

    def _is_replaced(self, name: str) -> bool:
        """Whether `name` is a checkpoint that was to be replaced by one which never came."""
        step = names.replaced_step(name)
        return step is not None and not self.path(step).exists()

    def put_aside(self, step: int) -> Path:
        """Renames the damaged checkpoint of `step`, so that it is looked at no more, and returns its new path."""
        aside = self._folder / names.damaged_name(step, self._names())
        rename(self.path(step), aside)
        sync_to_disk(self._folder)
        return aside

    def save(self, snapshot: Snapshot, moved: Moved = idle) -> Path:
        """Writes `snapshot`, commits it by renaming its folder, then removes the checkpoints that are to go.

        Raises:
            OSError: With errno and path; errors that may pass have been waited out. Nothing is left of the attempt.
        """
        temporary = self._folder / names.passing_name(snapshot.step, _owner(), "tmp")
        final = retried(lambda: self._save(temporary, snapshot, moved))
        self.thin_out()
        return final

    def _save(self, temporary: Path, snapshot: Snapshot, moved: Moved) -> Path:
        existed = self._folder.is_dir()
        make_folder(self._folder)
        if not existed:
            sync_to_disk(self._folder.parent)
        final = self.path(snapshot.step)
        remove_tree(temporary)  # of the attempt before, which could not remove it
        try:
            make_folder(temporary)
            write_checkpoint(temporary, snapshot, moved)
            if final.exists():
                replaced = self._folder / names.passing_name(snapshot.step, _owner(), "old")
                rename(final, replaced)
                rename(temporary, final)
                remove_tree(replaced)
            else:
                rename(temporary, final)
            sync_to_disk(self._folder)
        except BaseException:
            remove_tree(temporary)
            raise
        return final

    def adopt(self, other: CheckpointManager, step: int) -> None:
        """Has the checkpoint of `step` of another job-dir here, too: the same files by links. Without effect twice.

        Raises:
            FileNotFoundError: The other has none, or it is being removed.
            OSError: It cannot be linked.
        """
        if self.path(step).is_dir():
            return
        with other.reading(step) as folder:
            temporary = self._folder / names.passing_name(step, _owner(), "tmp")
            make_folder(temporary, 0o700)
            try:
                for name in (STATE_FILE, MANIFEST_FILE):
                    link_new(folder / name, temporary / name)
                sync_to_disk(temporary)
                rename(temporary, self.path(step))
                sync_to_disk(self._folder)
            finally:
                remove_tree(temporary)

    def thin_out(self) -> None:
        """Removes the checkpoints that neither number, period nor merit keeps, except those that are being read."""
        for step in self.expired():
            with suppress(OSError):  # such as that it is being read
                self._remove(step)

    def expired(self) -> list[int]:
        """The steps of the checkpoints that `thin_out` removes, oldest first."""
        best, wanted = self.best(), self.wanted()
        steps = self._retention.expired(self._times(), best.step if best else None)
        return [step for step in steps if step not in wanted]

    def _times(self) -> list[tuple[int, float]]:
        times = []
        for step in self.steps():
            try:
                times.append((step, read_manifest(self.path(step)).time))
            except (DamagedError, OSError):
                continue  # not whole: no room for it among those that stay, and not to be removed unseen
        return times

    def _remove(self, step: int) -> None:
        with self._locked(step, os.O_RDWR, fcntl.LOCK_EX):  # which NFS wants a file for that is open for writing
            gone = self._folder / names.passing_name(step, _owner(), "gone")
            rename(self.path(step), gone)
            remove_tree(gone)
            log.debug(f"checkpoint {self.path(step)} removed")

    def best(self) -> Best | None:
        """The best evaluation of a checkpoint that is still there."""
        try:
            best = best_in(load_json(self._folder / BEST_FILE))
        except (OSError, ValueError):
            return None
        return best if self.path(best.step).is_dir() else None

    def forget_best(self) -> None:
        """Keeps no checkpoint for its merit from now on."""
        remove(self._folder / BEST_FILE, missing_ok=True)

    def note_best(self, best: Best) -> None:
        """Keeps the checkpoint of `best` from now on, instead of the one that was best before."""
        replace_text(self._folder / BEST_FILE, json.dumps(asdict(best)) + "\n")


def _owner() -> str:
    """Who writes, for people, and what nobody can foresee."""
    return f"{os.uname().nodename}-{os.getpid()}.{os.urandom(8).hex()}"
