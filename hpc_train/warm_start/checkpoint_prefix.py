"""Where a checkpoint of TensorFlow lies: the prefix of its files, found by looking at names, without TensorFlow. Local.

TensorFlow writes `PREFIX.index`, `PREFIX.data-00000-of-00001`, and beside them the file `checkpoint` with the newest
prefix of the folder.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import defaultdict
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.files import read_bytes, require_regular
from hpc_train.text import NAMED, listed

NEWEST_FILE = "checkpoint"
MAX_NEWEST_BYTES = 1 << 20
"""A larger `checkpoint` file was not written by TensorFlow."""

_PART = re.compile(r"\.(?:index|meta|data-(\d{5})-of-(\d{5}))")
_NEWEST = re.compile(rb'^[ \t]*model_checkpoint_path[ \t]*:[ \t]*"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")


def prefix_at(path: Path) -> Path | None:
    """The prefix that `path` means: itself, that of one of its files, or the newest of a folder with `checkpoint`.

    None where there is no checkpoint of TensorFlow. Of the path that a `checkpoint` file has, the last part counts
    alone: the folder may have moved, and the file may be another user's.

    Raises:
        UserError: Files of the checkpoint are missing, or `checkpoint` does not say which is the newest.
        OSError: They cannot be read, or are no regular files.
    """
    if path.is_dir():
        if not os.path.lexists(path / NEWEST_FILE):
            return None
        prefix = _newest(path)
    else:
        file = re.fullmatch(f"(.+?){_PART.pattern}", path.name)
        prefix = path.with_name(file[1]) if file else path
    parts = _parts(prefix)
    if not parts:
        return None
    _check_whole(prefix, parts)
    return prefix


def data_files(prefix: Path) -> list[Path]:
    """The files with the values of the checkpoint `prefix`."""
    return [prefix.with_name(prefix.name + part) for part in sorted(_parts(prefix)) if part.startswith(".data")]


def prefixes_in(folder: Path) -> list[str]:
    """The names of the checkpoints in `folder`, by their numbers; none where it cannot be listed."""
    try:
        found = [name.removesuffix(".index") for name in os.listdir(folder) if name.endswith(".index")]
    except OSError:
        return []
    return sorted(found, key=lambda name: [(len(part), part) for part in re.split(r"(\d+)", name)])


def near(path: Path) -> str:
    """For a sentence that says that nothing is at `path`: which checkpoints are near, in words; empty without any."""
    names = prefixes_in(path.parent)
    if not names:
        return ""
    alike = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(alike[0])}?" if alike else f"; there are {listed(names, most=NAMED)}"


def _newest(folder: Path) -> Path:
    def refused(why: str) -> UserError:
        names = prefixes_in(folder)
        way_on = f"give one of those here: {listed(names, most=NAMED)}" if names else "there is no other one here"
        return UserError(f"warm_start_from: {folder / NEWEST_FILE}: {why}; {way_on}")

    try:
        content = read_bytes(folder / NEWEST_FILE, MAX_NEWEST_BYTES)
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror}") from None
    found = _NEWEST.search(content)
    name = _unescaped(found[1]).rpartition(b"/")[2] if found else b""
    if not name or b"\0" in name:
        raise refused("names no checkpoint (model_checkpoint_path), so TensorFlow did not write it")
    prefix = folder / os.fsdecode(name)
    if not _parts(prefix):
        raise refused(f"names {prefix.name}, which is not in this folder")
    return prefix


def _unescaped(text: bytes) -> bytes:
    """The bytes that a text of protobuf's text format stands for, of which paths have octal numbers and quotes."""
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 8) & 255]) if found[1].isdigit() else found[1], text)


def _parts(prefix: Path) -> set[str]:
    """What follows the prefix in the names of its files: .index, .data-00000-of-00001, without .meta."""
    try:
        names = os.listdir(prefix.parent)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    ends = {name.removeprefix(prefix.name) for name in names if name.startswith(prefix.name)}
    return {end for end in ends if end != ".meta" and _PART.fullmatch(end)}


def _check_whole(prefix: Path, parts: set[str]) -> None:
    shards = defaultdict(set)
    for part in parts:
        if (found := _PART.fullmatch(part)) and found[2]:
            shards[int(found[2])].add(int(found[1]))
    whole = any(numbers == set(range(count)) for count, numbers in shards.items())
    if ".index" not in parts or not whole:
        count = max(shards, default=1)
        needed = [".index", *(f".data-{number:05}-of-{count:05}" for number in range(count))]
        missing = [prefix.name + part for part in needed if part not in parts]
        raise UserError(
            f"warm_start_from: {prefix}: of this checkpoint {listed(missing, most=NAMED)} is not here; copy all files "
            f"{prefix.name}.*"
        )
    for part in parts:
        require_regular(prefix.with_name(prefix.name + part), follow=True)
