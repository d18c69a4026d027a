"""What one `hpc-train shard` is about to write, kept beside the shards, so that the same command can go on.

Of a prefix `train`, beside its shards and hidden: `.train.plan.json` (kept), `.train.lock`, `.train.spool-*` and
`.train-*.tmp` (removed at the end, or by the next run).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError
from hpc_train.files import open_to_lock, read_bytes, replace_text
from hpc_train.folders import make_folder, remove, remove_folder
from hpc_train.text import listed

VERSION = 1
MAX_PLAN_BYTES = 256 << 20
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def alone(prefix: Path) -> Iterator[None]:
    """Makes the folder of `prefix` and keeps other writers of the same prefix out, where the file system has locks.

    Raises:
        UserError: Another process writes there, or the folder cannot be written.
    """
    path = prefix.parent / f".{prefix.name}.lock"
    made = not prefix.parent.exists()
    try:
        make_folder(prefix.parent, follow=True)
        descriptor = _lock(path)
    except BlockingIOError:
        raise UserError(f"{prefix}: another process is writing these shards; wait for its end") from None
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{prefix}: cannot be written: {prefix.parent} is no folder") from None
    except OSError as error:
        kind = str(error.strerror).startswith("is ")  # "is a FIFO, not a regular file"
        cause = f"{path} {error.strerror}" if kind else error.strerror
        raise UserError(f"{prefix}: cannot be written: {cause}") from None
    try:
        yield
    finally:
        remove(path, missing_ok=True)
        os.close(descriptor)
        if made:
            with suppress(OSError):  # it is empty only where nothing could be written
                remove_folder(prefix.parent)


def _lock(path: Path) -> int:
    while True:
        descriptor = open_to_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and flock the file's last owner may have removed it: then the lock is on no name.
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)


class Plan:
    """Options and sources of one command, and its spools that are whole.

    Args:
        options: Options by name, as plain values.
        sources: Column name given, or "", and path of each source.
    """

    def __init__(self, prefix: Path, options: Mapping[str, Any], sources: Sequence[tuple[str, Path]]) -> None:
        self._path = _path(prefix)
        self.spools: dict[str, Any] = {}
        self._value: dict[str, Any] = {
            "version": VERSION,
            "options": dict(options),
            "sources": [
                {"path": str(path.absolute()), "name": name, "bytes": now.st_size, "modified_ns": now.st_mtime_ns}
                for name, path, now in ((name, path, path.stat()) for name, path in sources)
            ],
        }

    def differences(self) -> list[str] | None:
        """How this plan differs from the one that is there, in words; None where there is none.

        Where it does not differ, the spools of the one that is there are taken over.
        """
        try:
            old = json.loads(read_bytes(self._path, MAX_PLAN_BYTES))
            found = self._differences(old)
            if not found:
                self.spools = old["spools"]
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return [f"its plan {self._path} cannot be read"]

    def _differences(self, old: Any) -> list[str]:
        if old["version"] != VERSION:
            return ["another version of hpc_train began them"]
        was, now = old["options"], json.loads(json.dumps(self._value["options"]))
        found = [f"--{k} was {_shown(was.get(k))} and is {_shown(v)}" for k, v in now.items() if was.get(k) != v]
        before, after = old["sources"], self._value["sources"]
        if [(s["name"], s["path"]) for s in before] != [(s["name"], s["path"]) for s in after]:
            return [*found, f"the sources were {_sources(before)} and are {_sources(after)}"]
        return found + [f"{b['path']} has changed since" for a, b in zip(before, after, strict=True) if a != b]

    def write(self) -> None:
        """Puts the plan beside the shards, by rename."""
        replace_text(self._path, json.dumps({**self._value, "spools": self.spools}, indent=1))


def is_of_split(prefix: Path) -> bool:
    """Whether a command that wrote several sets began the shards of `prefix`."""
    try:
        return json.loads(read_bytes(_path(prefix), MAX_PLAN_BYTES))["options"].get("split") is not None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _path(prefix: Path) -> Path:
    return prefix.parent / f".{prefix.name}.plan.json"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "not given"
    return "not given" if value is None else "on" if value is True else "off" if value is False else str(value)


def _sources(sources: Sequence[Mapping[str, Any]]) -> str:
    return listed(f"{s['name']}={s['path']}" if s["name"] else s["path"] for s in sources)


def clean(prefix: Path, *, spools: bool = True, plan: bool = False) -> None:
    """Removes temporary files that killed runs left behind; also `spools` that are whole, and the `plan`."""
    name = re.escape(prefix.name)
    patterns = [rf"\.{{1,2}}{name}(-\d{{5}}\.h5|\.spool-\d+(\.\d+)?|\.plan\.json)\.\w+\.tmp"]
    patterns += [rf"\.{name}\.spool-\d+(\.\d+)?"] if spools else []
    patterns += [rf"\.{name}\.plan\.json"] if plan else []
    for path in _matching(prefix.parent, "|".join(patterns)):
        remove(path, missing_ok=True)


def shards(prefix: Path) -> list[Path]:
    """Shards that are there, in order."""
    return _matching(prefix.parent, re.escape(prefix.name) + r"-\d{5}\.h5")


def _matching(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if re.fullmatch(pattern, path.name))
