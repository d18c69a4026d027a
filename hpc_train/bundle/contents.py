"""What of a job-dir goes into a bundle: text files of the job's own, cut where they are long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_train.files import open_to_read
from hpc_train.jobdir.paths import (
    CANCELLED_FILE,
    DATA_FILE,
    EARLY_STOP_FILE,
    ENVIRONMENT_FILE,
    JOB_FILE,
    LOCK_FILE,
    LOGS,
    SCHEMA_FILE,
    SCRIPT_FILE,
    SLOW_NODES_FILE,
    SUBMISSION_FILE,
    WARM_START_FILE,
)
from hpc_train.telemetry.files import METRICS_FILE, STATUS_FILE

TOP = (
    *(JOB_FILE, SCHEMA_FILE, DATA_FILE, ENVIRONMENT_FILE, STATUS_FILE, METRICS_FILE, EARLY_STOP_FILE, WARM_START_FILE),
    *(LOCK_FILE, SLOW_NODES_FILE, SUBMISSION_FILE, CANCELLED_FILE, SCRIPT_FILE),
)
"""Of what lies at the top of a job-dir. SECRETS_FILE is not among them, nor is the job's code."""
HEAD_BYTES, TAIL_BYTES = 256 << 10, 1 << 20
MOST_LOGS, MOST_LISTED = 200, 20_000
"""The newest so many files of logs/; so many lines of the list of files."""
DEPTH = 4


@dataclass(frozen=True)
class Entry:
    """A text file of a bundle; `note`: what is not as it was."""

    name: str
    text: str
    note: str = ""


def of_job_dir(job_dir: Path) -> Iterator[Entry]:
    """The entries, then the list of all files of the job-dir with their sizes. What cannot be read is said. Local."""
    logs, more = _logs(job_dir)
    for name in (*TOP, *logs):
        if (found := _entry(job_dir, name)) is not None:
            yield found
    note = f"{more:,} older files of {LOGS}/ are left out" if more else ""
    yield Entry("files.txt", "".join(_listing(job_dir)), note)


def _entry(job_dir: Path, name: str) -> Entry | None:
    try:
        text, note = _read(job_dir / name)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Entry(f"job/{name}", "", f"cannot be read: {error.strerror}")
    return Entry(f"job/{name}", text, note)


def _read(path: Path) -> tuple[str, str]:
    """The text of a file, without its middle where it is long, and what is left out."""
    with open_to_read(path) as file:
        head = file.read(HEAD_BYTES + TAIL_BYTES + 1)
        if len(head) <= HEAD_BYTES + TAIL_BYTES:
            return head.decode(errors="replace"), ""
        size = os.fstat(file.fileno()).st_size
        file.seek(size - TAIL_BYTES)
        tail = file.read(TAIL_BYTES)
    first, last = head[:HEAD_BYTES].rpartition(b"\n"), tail.partition(b"\n")
    head, tail = first[0] or first[2], last[2] or last[0]
    left_out = f"{size - len(head) - len(tail):,} bytes in its middle are left out"
    return f"{head.decode(errors='replace')}\n… {left_out} …\n{tail.decode(errors='replace')}", left_out


def _logs(job_dir: Path) -> tuple[list[str], int]:
    """Regular files below logs/, the newest first, and how many more there are."""
    found = []
    for path, status in _walk(job_dir / LOGS, DEPTH):
        if status is not None:
            found.append((status.st_mtime, str(path.relative_to(job_dir))))
    names = [name for _, name in sorted(found, reverse=True)]
    return names[:MOST_LOGS], max(0, len(names) - MOST_LOGS)


def _listing(job_dir: Path) -> Iterator[str]:
    for count, (path, status) in enumerate(_walk(job_dir, DEPTH)):
        if count == MOST_LISTED:
            yield "…\n"
            return
        size = "no regular file" if status is None else f"{status.st_size:>16,}"
        yield f"{size}  {path.relative_to(job_dir)}\n"


def _walk(folder: Path, depth: int) -> Iterator[tuple[Path, os.stat_result | None]]:
    """Files below `folder`, whose links are not followed; None of what is no regular file."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth > 1:
                    yield from _walk(Path(entry.path), depth - 1)
            else:
                yield (
                    Path(entry.path),
                    entry.stat(follow_symlinks=False) if entry.is_file(follow_symlinks=False) else None,
                )
        except OSError:
            continue
