"""Small JSON files, replaced whole so that a reader never sees half of one; and their reader."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hpc_train.files import read_bytes, replace_text
from hpc_train.telemetry.disk_space import shortage

log = logging.getLogger(__name__)
MAX_JSON_BYTES, MAX_JSON_VALUES, MAX_JSON_DEPTH = 16 << 20, 1_000_000, 100
"""What is larger, or holds more, was not written by this package."""


class UnreadableError(ValueError):
    """A file does not hold what it should; the message ends a sentence that begins with its path."""


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
                lacks = shortage(error.errno, path) if isinstance(error, OSError) else ""
                log.warning(f"{path}: cannot be written: {error}{lacks}; training goes on without")


def write_json(path: Path, value: Any, to_disk: bool = True) -> None:
    """Replaces `path` by `value` as JSON. Numbers that are not finite become null."""
    replace_text(path, json.dumps(finite(value), indent=2) + "\n", to_disk)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path`; empty where there is none, or it cannot be read, or is too large."""
    with suppress(OSError, UnreadableError):
        return load_json(path)
    return {}


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in the regular file `path`.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger than MAX_JSON_BYTES.
        UnreadableError: It holds no JSON object, or one with a number of thousands of digits, nested too deeply, or of
            too many values.
    """
    fields = parsed(read_bytes(path, MAX_JSON_BYTES))
    if not isinstance(fields, dict):
        raise UnreadableError("holds no JSON object")
    return fields


def parsed(raw: bytes) -> Any:
    """The value that JSON of somebody else's holds, in bounded memory; UnreadableError as in `load_json`. Pure."""
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise UnreadableError("has too many values")
    try:
        value = json.loads(raw.decode(errors="replace"))
        too_deep = _is_deeper(value, MAX_JSON_DEPTH)
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise UnreadableError(
            "is not JSON" if isinstance(error, json.JSONDecodeError) else "has a number of too many digits"
        ) from None
    if too_deep:
        raise UnreadableError("is nested too deeply")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in inner)


def finite(value: Any) -> Any:
    """`value` with every number that JSON cannot hold (NaN, infinity) as None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
