"""Small JSON files that are replaced whole, so that a reader never sees half of one; and their reader."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 16 << 20
"""A larger file was not written by this package."""


class Lenient:
    """Lets training go on where a file that only tells of it cannot be written: says so, once.

    Args:
        say: Prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._told = say, False

    @contextmanager
    def writing(self, path: Path, *errors: type[Exception]) -> Iterator[None]:
        """Passes over an OSError, or one of `errors`, while `path` is written."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, (OSError, *errors)):
                raise
            if not self._told:
                self._told = True
                self._say(f"warning: {path}: cannot be written: {error}; training goes on without")


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
    """Replaces `path` by `text` in one rename; with `to_disk`, waits until it is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if to_disk:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """`value` with every number that JSON cannot hold (NaN, infinity) as None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
