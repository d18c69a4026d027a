"""Small JSON files that are replaced whole, so that a reader never sees half of one; and their reader."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
MAX_JSON_BYTES = 16 << 20
"""A larger file was not written by this package."""


class Lenient:
    """Lets training go on where a file that only reports on it cannot be written: logs it, once."""

    def __init__(self) -> None:
        self._logged = False

    @contextmanager
    def writing(self, path: Path, *errors: type[Exception]) -> Iterator[None]:
        """Passes over an OSError, or one of `errors`, while `path` is written."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, (OSError, *errors)):
                raise
            if not self._logged:
                self._logged = True
                log.warning(f"{path}: cannot be written: {error}; training goes on without")


def write_json(path: Path, value: Any, to_disk: bool = True) -> None:
    """Replaces `path` by `value` as JSON. Numbers that are not finite become null."""
    replace_text(path, json.dumps(finite(value), indent=2) + "\n", to_disk)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path`; empty where there is none, or it cannot be read, or is too large."""
    with suppress(OSError, ValueError, RecursionError):
        with open(path, "rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
        fields = json.loads(raw.decode(errors="replace")) if len(raw) <= MAX_JSON_BYTES else None
        return fields if isinstance(fields, dict) else {}
    return {}


def replace_text(path: Path, text: str, to_disk: bool = True) -> None:
    """Replaces `path` by `text` in one rename; with `to_disk`, waits until it is there.

    The temporary file beside it is a new one with a name that nobody can foresee, so that in a folder in which others
    may write, no link of theirs is followed.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if to_disk:
                os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def finite(value: Any) -> Any:
    """`value` with every number that JSON cannot hold (NaN, infinity) as None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
