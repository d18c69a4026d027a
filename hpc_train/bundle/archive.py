"""The archive: entries, redacted, in one file that appears whole or not at all."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.bundle.contents import Entry
from hpc_train.bundle.redaction import Redaction
from hpc_train.errors import UserError
from hpc_train.files import create, link_new, unforeseen
from hpc_train.folders import remove, rename

MOST_BYTES = 256 << 20
"""Of all entries together, before they are packed."""
ABOUT = """What is in this archive

It was written by `hpc-train bundle {job}` for those who are to help with the job.

job/       what the job reported: its files and logs, of long ones the first and the last part
files.txt  names and sizes of the files of its job-dir
slurm/     what Slurm knows of it and of its nodes
machine/   the machine on which this command ran
python/    packages, and variables that decide how jobs run
doctor.jsonl  the findings of `hpc-train doctor` there, one a line
notes.json    what is left out, cut or could not be read; {count} places were redacted, as ***

Not in it: the job's code, its data, checkpoints and exports. Values of its `resources.environment` are *** in all
texts, as far as they have six characters and are known here (notes.json names those that are not), and so is what looks
like a secret. That finds most, not all: look through the texts before you send them to somebody. Names of users,
hosts, folders and shards are as they were.
"""


@dataclass
class Written:
    """What was written: bytes of the file, its entries, places that were redacted, and what is left out, by entry."""

    bytes: int = 0
    entries: int = 0
    redacted: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def write_bundle(path: Path, name: str, entries: Iterable[Entry], redaction: Redaction) -> Written:
    """Writes `entries` below a folder `name` into a new .tar.gz, for its owner alone.

    Raises:
        UserError: There is something at `path`, or it cannot be written; nothing is left of it then.
    """
    written, now, left = Written(), int(time.time()), MOST_BYTES
    if os.path.lexists(path):
        raise UserError(f"--out: {path} is there; give another name")
    temporary = unforeseen(path)
    try:
        with _written_to(path):
            descriptor = create(temporary, 0o600)
        with open(descriptor, "wb") as file:
            tar = tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT)  # noqa: SIM115  (closed below)

            def add(entry_name: str, text: str) -> None:
                content = text.encode(errors="replace")
                info = tarfile.TarInfo(f"{name}/{entry_name}")
                info.size, info.mtime, info.mode = len(content), now, 0o600
                with _written_to(path):
                    tar.addfile(info, io.BytesIO(content))

            for entry in entries:
                text = redaction.content(entry.name, entry.text)
                if entry.note:
                    written.notes[entry.name] = redaction.text(entry.note)
                if len(text) > left:
                    written.notes[entry.name] = "is left out: the archive would be too large"
                    continue
                left -= len(text)
                written.entries += 1
                add(redaction.text(entry.name), text)
            written.redacted = redaction.count
            add("notes.json", json.dumps(written.notes, indent=1) + "\n")
            add("README.txt", ABOUT.format(job=name, count=redaction.count))
            with _written_to(path):
                tar.close()
                file.flush()
                os.fsync(file.fileno())
            written.bytes = os.fstat(file.fileno()).st_size
        with _written_to(path):
            _commit(temporary, path)
    finally:
        with suppress(OSError):
            remove(temporary)
    return written


@contextmanager
def _written_to(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--out: {path} cannot be written: {error.strerror}") from None


def _commit(temporary: Path, path: Path) -> None:
    try:
        new = link_new(temporary, path)
    except OSError:  # a file system without hard links
        rename(temporary, path)
        return
    if not new:
        raise UserError(f"--out: {path} is there; give another name")
