"""What of a job-dir goes into a bundle: text files of the job's own, cut where they are long."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from hpc_train.files import open_to_read
from hpc_train.folders import held
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
from hpc_train.text import visible

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
    """The entries, then the list of all files of the job-dir with their sizes. What cannot be read is said. Local.

    No link is followed, whoever has made it.
    """
    with held(job_dir, follow=True) as top:
        logs, more = _logs(top)
        for name in (*TOP, *logs):
            if (found := _entry(top, name)) is not None:
                yield found
        note = f"{more:,} older files of {LOGS}/ are left out" if more else ""
        yield Entry("files.txt", "".join(_listing(top)), note)


def _entry(top: Path, name: str) -> Entry | None:
    try:
        with ExitStack() as stack:
            *folders, last = Path(name).parts
            for folder in folders:
                top = stack.enter_context(held(top / folder))
            text, note = _read(top / last)
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


def _logs(top: Path) -> tuple[list[str], int]:
    """Regular files below logs/, the newest first, and how many more there are."""
    found = [(status.st_mtime, name) for name, status in _walk(top, LOGS, DEPTH) if status is not None]
    names = [name for _, name in sorted(found, reverse=True)]
    return names[:MOST_LOGS], max(0, len(names) - MOST_LOGS)


def _listing(top: Path) -> Iterator[str]:
    for count, (name, status) in enumerate(_walk(top, "", DEPTH)):
        if count == MOST_LISTED:
            yield "…\n"
            return
        size = " no regular file" if status is None else f"{status.st_size:>16,}"
        yield f"{size}  {visible(name)}\n"


def _walk(above: Path, name: str, depth: int) -> Iterator[tuple[str, os.stat_result | None]]:
    """Files below the folder `name` of one that is held, by their path from there; None of what is no regular file."""
    try:
        with held(above / name) if name else nullcontext(above) as folder:
            for inner in sorted(os.listdir(folder)):
                path = f"{name}/{inner}" if name else inner
                try:
                    status = (folder / inner).lstat()
                except OSError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    if depth > 1:
                        yield from (
                            (f"{name}/{below}" if name else below, s) for below, s in _walk(folder, inner, depth - 1)
                        )
                else:
                    yield path, status if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return
