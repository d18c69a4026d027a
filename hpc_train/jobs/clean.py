"""What of a job-dir can go: left-overs, old checkpoints, what is of earlier runs; or all of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.manifest import FormatError
from hpc_train.checkpoint.names import Retention
from hpc_train.errors import UserError
from hpc_train.export.export_dir import ExportFolder
from hpc_train.folders import exposure, remove, remove_tree
from hpc_train.jobdir.job_dir import MARKS, JobDir
from hpc_train.jobdir.paths import CHECKPOINTS, CODE, EXPORTS, INSTALLATION, LOCK_FILE, LOGS, OWN_FILES, SUBMISSION_FILE
from hpc_train.jobdir.trust import check_job_dir
from hpc_train.jobdir.usage import bytes_of, kind_of, usage_of
from hpc_train.jobs.inspect import inspect_job, inspect_jobs, leftover
from hpc_train.jobs.record.status import JobStatus, read_record
from hpc_train.resilience.job_lock import JobLock, holder_of
from hpc_train.resilience.lock_holder import refusal
from hpc_train.telemetry.files import METRICS_FILE, STATUS_FILE
from hpc_train.telemetry.units import counted
from hpc_train.text import listed

Kind = Literal[
    "left-overs",
    "damaged checkpoints",
    "old checkpoints",
    "output of earlier runs",
    "earlier installations",
    "the whole job-dir",
]
COPIED_SECS = 7200.0
"""For so long a copy of hpc_train may be that of somebody who submits: pip may take half an hour beside it."""
SETTLED_SECS = 600.0
"""Temporary files that were touched since may be somebody's who is just writing: of a report, or an evaluation."""
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_RUN = re.compile(r"run-(\d+)")
_COPY = re.compile(r"[0-9a-f]{32}")
RUN_MARKS = (METRICS_FILE, STATUS_FILE, LOCK_FILE)
OWN = frozenset((*OWN_FILES, *RUN_MARKS))


@dataclass(frozen=True)
class Removal:
    """Something of a job-dir that can go.

    Attributes:
        what: Which it is, in words.
        bytes: What it takes on the disk.
    """

    kind: Kind
    what: str
    bytes: int


@dataclass(frozen=True)
class Cleaning:
    """What can go of one job-dir.

    Attributes:
        refused: Why nothing of it is touched; None: it can be cleaned.
        keep: How many of the newest checkpoints stay; 0: all.
    """

    job_dir: Path
    removals: tuple[Removal, ...] = ()
    refused: str | None = None
    keep: int = 0

    @property
    def bytes(self) -> int:
        """Of all that can go."""
        return sum(removal.bytes for removal in self.removals)


@dataclass(frozen=True)
class Cleaned:
    """What was removed of one job-dir, in bytes, and what stays against what was said, and why."""

    bytes: int
    problem: str | None = None


def cleanings(job_dirs: Sequence[Path], keep: int | None = None, whole: bool = False) -> list[Cleaning]:
    """What can go of each job-dir; changes nothing. Local.

    Args:
        keep: How many of the newest checkpoints stay, with the best one, from 1. None: one, or all where the job was
            asked to keep all (keep_checkpoint_max: 0).
        whole: The job-dirs themselves go.
    """
    found = []
    for status in inspect_jobs(job_dirs):
        job_dir = Path(status.job_dir)
        try:
            why = _refusal(job_dir, status) or (_not_whole(job_dir) if whole else None)
            stay = _kept_by(job_dir) if keep is None else keep
            removals = () if why is not None else tuple(_whole(job_dir) if whole else _removals(job_dir, stay))
            found.append(Cleaning(job_dir, removals, why, stay))
        except OSError as error:
            found.append(Cleaning(job_dir, (), f"{error.filename or job_dir}: cannot be read: {error.strerror}"))
    return found


def _refusal(job_dir: Path, status: JobStatus) -> str | None:
    """Why nothing of a job-dir is to be removed; None: it may be."""
    try:
        if (owner := exposure(job_dir, group=False)) is not None and owner.startswith("belongs"):
            return f"{owner}, who has to clean it"
        check_job_dir(job_dir)
    except UserError as error:
        return str(error).removeprefix(f"{job_dir}: ")
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if job_dir.is_symlink():
        return f"is a symbolic link to {os.readlink(job_dir)}; name that folder"
    if status.note is not None:
        return f"whether the job runs is not known: {status.note}"
    if not status.has_ended:
        return f"the job is {status.state}"
    if status.state == "UNREADABLE":
        return f"what it records of the job cannot be read: {status.reason}"
    if (holder := holder_of(job_dir)) is not None:
        return refusal(job_dir, holder).removeprefix(f"{job_dir}: ")
    if status.state != "SUCCEEDED" and (left := leftover(job_dir)):
        return f"processes of the job still run ({', '.join(map(str, left[:5]))})"
    return None


def _kept_by(job_dir: Path) -> int:
    try:
        run = JobDir(job_dir).job().value.get("run")
    except UserError:  # none, or one that cannot be read
        return 1
    return 0 if isinstance(run, dict) and run.get("keep_checkpoint_max") == 0 else 1


def _not_whole(job_dir: Path) -> str | None:
    """Why a job-dir is not to be removed whole; None: nothing is in it but what the job has written.

    A job-dir that was submitted was made for the job alone; one that a program was given may have been anything before.
    """
    here = job_dir.resolve()
    if here in (Path.cwd(), *Path.cwd().parents):
        return "the working directory is in it; change to another first"
    if others := _job_dirs_in(job_dir):
        return f"other job-dirs are in it ({listed(others)}); remove those first, each by its name"
    foreign = [] if (job_dir / SUBMISSION_FILE).is_file() else [p.name for p in _inside(job_dir) if not _is_own(p.name)]
    if foreign:
        return (
            f"it holds what the job has not written ({listed(foreign)}); move that away, or remove the folder by "
            "hand: rm -r"
        )
    return None


def _is_own(name: str) -> bool:
    return name in OWN or kind_of(name) != "other" or _TEMPORARY.fullmatch(name) is not None


def _job_dirs_in(job_dir: Path) -> list[str]:
    """Job-dirs below, at any depth, but for what the copy of the code holds."""
    found = []
    for folder, folders, files in os.walk(job_dir):
        if folder == str(job_dir):
            folders[:] = [name for name in folders if name not in (CODE, INSTALLATION)]
        elif any(name in files for name in (*RUN_MARKS, SUBMISSION_FILE)):
            found.append(os.path.relpath(folder, job_dir))
            folders.clear()
    return sorted(found)


def _whole(job_dir: Path) -> Iterator[Removal]:
    yield Removal("the whole job-dir", "", usage_of(job_dir).total)


def _removals(job_dir: Path, keep: int) -> Iterator[Removal]:
    manager = _manager(job_dir, keep)
    if left := [*manager.left_over(), *_temporary(job_dir)]:
        yield Removal("left-overs", f"of {counted(len(left), 'write')} cut short", _bytes(left))
    if damaged := manager.set_aside():
        yield Removal("damaged checkpoints", f"{len(damaged)} set aside", _bytes(damaged))
    if steps := _expired(manager):
        shown = ", ".join(f"{step:,}" for step in steps[:4]) + (" …" if len(steps) > 4 else "")
        text = f"{len(steps)} of {len(manager.steps())} (step {shown})"
        yield Removal("old checkpoints", text, _bytes([manager.path(step) for step in steps]))
    if runs := _earlier_runs(job_dir):
        text = runs[0].name if len(runs) == 1 else f"{runs[0].name} to {runs[-1].name}"
        yield Removal("output of earlier runs", text, _bytes(runs))
    if copies := _earlier_installations(job_dir):
        text = f"{len(copies)} of {len(_inside(job_dir / INSTALLATION))} copies of hpc_train"
        yield Removal("earlier installations", text, _bytes(copies))


def _manager(job_dir: Path, keep: int) -> CheckpointManager:
    return CheckpointManager(job_dir / CHECKPOINTS, Retention(keep))


def _expired(manager: CheckpointManager) -> list[int]:
    """None where another version has written one: what that one needs is not known."""
    try:
        return manager.expired()
    except FormatError:
        return []


def _bytes(paths: Sequence[Path]) -> int:
    return sum(map(bytes_of, paths))


def _temporary(job_dir: Path) -> list[Path]:
    """Files that were to replace others, of the job-dir's own folders; and unfinished exports."""
    found = []
    for folder in (job_dir, job_dir / LOGS, job_dir / CHECKPOINTS):
        for path in _inside(folder):
            with suppress(OSError):
                if _TEMPORARY.fullmatch(path.name) and time.time() - path.lstat().st_mtime > SETTLED_SECS:
                    found.append(path)
    exporters = (path for path in _inside(job_dir / EXPORTS) if path.is_dir() and not path.is_symlink())
    return [*found, *(path for folder in exporters for path in ExportFolder(folder, sole=False).left_over())]


def _earlier_runs(job_dir: Path) -> list[Path]:
    """The folders of the ranks' output in all runs but the last one, oldest first."""
    numbers = {int(match[1]): path for path in _inside(job_dir / LOGS) if (match := _RUN.fullmatch(path.name))}
    return [numbers[number] for number in sorted(numbers)[:-1]]


def _earlier_installations(job_dir: Path) -> list[Path]:
    """Copies of hpc_train other than the one that the job goes on with; none where that is not known."""
    submission, folder = read_record(job_dir).submission, job_dir / INSTALLATION
    if submission is None or submission.installation is None or folder.is_symlink():
        return []
    kept, found = submission.installation.path(job_dir), []
    for path in _inside(folder):
        with suppress(OSError):  # one that is new may be that of a submission which is not recorded yet
            if path != kept and _COPY.fullmatch(path.name) and time.time() - path.lstat().st_mtime > COPIED_SECS:
                found.append(path)
    return found


def _inside(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder.iterdir())
    return []


def clean(cleaning: Cleaning) -> Cleaned:
    """Removes what `cleaning` lists, as far as that still holds; with the job's lock, so that no run begins meanwhile.

    Old checkpoints go once the newest has been read whole: where it is damaged, all of them stay.
    """
    job_dir, problems = cleaning.job_dir, []
    kinds = {removal.kind for removal in cleaning.removals}
    before = _total(job_dir)
    try:
        with _locked(job_dir):
            if "the whole job-dir" in kinds:
                if (why := _not_whole(job_dir)) is not None:
                    raise UserError(f"{job_dir}: is left alone: {why}")
                _remove_job_dir(job_dir)
            else:
                problems = list(_clean(job_dir, cleaning.keep, kinds))
    except UserError as error:
        return Cleaned(0, str(error).removeprefix(f"{job_dir}: "))
    except OSError as error:
        problems.append(f"{error.filename or job_dir}: {error.strerror}")
    return Cleaned(max(0, before - _total(job_dir)), "; ".join(problems) or None)


@contextmanager
def _locked(job_dir: Path) -> Iterator[None]:
    """UserError where the job was started again meanwhile."""
    with JobLock(job_dir):
        if read_record(job_dir).submission is not None and not (status := inspect_job(job_dir)).has_ended:
            raise UserError(f"{job_dir}: the job is {status.state} by now")
        check_job_dir(job_dir)
        yield


def _clean(job_dir: Path, keep: int, kinds: set[Kind]) -> Iterator[str]:
    """What could not be done, and why."""
    manager = _manager(job_dir, keep)
    if "left-overs" in kinds:
        manager.clean()
        for path in _temporary(job_dir):
            _remove(path)
    if "damaged checkpoints" in kinds:
        for path in manager.set_aside():
            remove_tree(path)
    if "old checkpoints" in kinds:
        found = manager.find_whole()
        if found.step is None or found.damaged:
            wrong = found.damaged[0][1] if found.damaged else "gone"
            yield f"old checkpoints stay: the newest is damaged: {wrong}; the job, resumed, goes on from one before it"
        else:
            manager.thin_out()
            if stays := _expired(manager):
                yield f"{counted(len(stays), 'old checkpoint')} cannot be removed, or is being read"
    if "output of earlier runs" in kinds:
        for path in _earlier_runs(job_dir):
            _remove(path)
    if "earlier installations" in kinds:
        for path in _earlier_installations(job_dir):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        remove(path, missing_ok=True)


def _remove_job_dir(job_dir: Path) -> None:
    """What makes it a job-dir goes last, so that it can be removed again where this is cut short."""
    for path in _inside(job_dir):
        if path.name not in (*MARKS, SUBMISSION_FILE):
            _remove(path)
    remove_tree(job_dir)
    if os.path.lexists(job_dir):
        raise OSError(0, "not all of it can be removed", str(job_dir))


def _total(job_dir: Path) -> int:
    try:
        return usage_of(job_dir).total
    except OSError:
        return 0
