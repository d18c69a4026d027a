"""Packs that were made for jobs, kept for the next ones: of an environment that has not changed, one is made once."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.files import is_ours
from hpc_train.folders import exposure, make_folder
from hpc_train.packs.archive import plan_pack, write_pack
from hpc_train.telemetry.json_files import UnreadableError, load_json, read_json, write_json
from hpc_train.telemetry.units import size

_PACK = re.compile(r"[0-9a-f]{32}\.tar|\.[0-9a-f]{32}\.tar\.[0-9a-f]{16}\.tmp")


def cache_folder(env: Mapping[str, str], home: Path) -> Path:
    """Where they are kept."""
    return Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "hpc_train/packs"


@dataclass(frozen=True)
class CachedPack:
    """A pack that is kept.

    Attributes:
        unused_secs: Since a job was last submitted with it.
        job_dirs: Of the jobs that were.
        notes: Files that belong to it. unread: one of them that cannot be read, in words.
    """

    path: Path
    bytes: int
    unused_secs: float
    job_dirs: tuple[Path, ...]
    notes: tuple[Path, ...]
    unread: str | None = None


def pack_of(venv: Path, folder: Path, report: Callable[[str], None], job_dir: Path) -> tuple[Path, str]:
    """The pack of an environment as it is now, made unless `folder` has it, and its SHA-256; noted as that of a job.

    Raises:
        UserError: It cannot be made.
    """
    planned = plan_pack(venv, report)
    path = folder / f"{planned.manifest.contents[:32]}.tar"
    note = path.with_suffix(".json")
    try:
        make_folder(folder, 0o700)
        _check(folder)
        known = read_json(note)
        if not (is_ours(path) and known.get("bytes") == path.stat().st_size and isinstance(known.get("sha256"), str)):
            report(f"makes a pack of {venv}, {size(planned.manifest.bytes)}: {path}")
            written = write_pack(path, planned)
            known = {"bytes": written.bytes, "sha256": written.sha256}
            write_json(note, known)
        note_use(path, job_dir)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
    return path, str(known["sha256"])


def note_use(path: Path, job_dir: Path) -> None:
    """Notes that a job starts from a pack that is kept: it stays for an hour, and while the job wants it.

    Raises:
        OSError: It is gone, or nothing can be written beside it.
    """
    os.utime(path)
    job_note = path.with_suffix(f".{hashlib.sha256(os.fsencode(job_dir)).hexdigest()[:32]}.json")
    write_json(job_note, {"job_dir": str(job_dir.absolute())})


def cached_packs(folder: Path) -> list[CachedPack]:
    """The packs in `folder`, and what is left of those that were not made to their end.

    Raises:
        UserError: Others may write there.
        OSError: It cannot be read.
    """
    if not os.path.lexists(folder):
        return []
    _check(folder)
    found = []
    for path in sorted(folder.iterdir()):
        if _PACK.fullmatch(path.name):
            about, told = path.lstat(), sorted(folder.glob(f"{path.stem}.*json"))
            job_dirs, unread = [], None
            for note in told:
                try:
                    job_dirs.append(load_json(note).get("job_dir"))
                except (OSError, UnreadableError) as error:
                    unread = f"{note} cannot be read ({error})"
            named = tuple(Path(one) for one in job_dirs if isinstance(one, str))
            unused = time.time() - about.st_mtime
            found.append(CachedPack(path, about.st_size, unused, named, tuple(told), unread))
    return found


def _check(folder: Path) -> None:
    if (who := exposure(folder)) is not None:
        raise UserError(f"{folder}: {who}, so that packs in it could be changed: chmod go-w it, or remove it")
