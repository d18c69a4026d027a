"""The code of hpc_train itself, as a folder of a package: its files, its version, and a fingerprint of all of it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_train.files import read_bytes

MAX_FILES, MAX_FILE_BYTES = 10_000, 16 << 20
"""Of the package; it has 700 files, none of a MiB."""
_VERSION = re.compile(r"^__version__ = [\"']([\w.+-]{1,64})[\"']", re.MULTILINE)


def fingerprint_of(package: Path) -> str:
    """The fingerprint of the files in `package`, but for those that Python compiles.

    Raises:
        OSError: One cannot be read, or there are too many.
    """
    digest = hashlib.sha256()
    for name in files_of(package):
        add_file(digest, name, read_bytes(package / name, MAX_FILE_BYTES, follow=True))
    return digest.hexdigest()[:32]


def version_of(package: Path) -> str | None:
    """The version that the package in this folder says it is; None where there is none."""
    with suppress(OSError):
        found = _VERSION.search(
            read_bytes(package / "__init__.py", MAX_FILE_BYTES, follow=True).decode("utf-8", "replace")
        )
        return found[1] if found else None
    return None


def files_of(package: Path) -> Iterator[str]:
    """The package's files by their paths in it, in one order everywhere."""
    count = 0
    for folder, folders, files in os.walk(package, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            count += 1
            if count > MAX_FILES:
                raise OSError(0, f"has more than {MAX_FILES} files", str(package))
            yield os.path.relpath(f"{folder}/{name}", package)


def _raise(error: OSError) -> None:
    raise error


def add_file(digest: Any, name: str, content: bytes) -> None:
    """Adds a file to the digest of a fingerprint."""
    digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape"))
    digest.update(content)
