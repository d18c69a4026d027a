"""manifest.json: what makes a checkpoint whole. Written last; each byte of the checkpoint is covered by a digest."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hpc_train.checkpoint.disk_io import Moved, idle, opened, write_pieces
from hpc_train.files import read_bytes, require_regular
from hpc_train.telemetry.json_files import parsed

MANIFEST_FILE = "manifest.json"
STATE_FILE = "state.h5"
FORMAT = 3
PIECE_BYTES = 8 << 20
MAX_MANIFEST_BYTES = 64 << 20
"""Of 6 TB of variables it has 53 MB."""
READ_BYTES = 1 << 20
THREADS = 4


class DamagedError(ValueError):
    """A checkpoint is not whole; the message says why."""


class FormatError(ValueError):
    """A checkpoint is of another format than this version's; the message names both."""


Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 60)]


@dataclass(frozen=True)
class Manifest:
    """What manifest.json records of the state.h5 beside it.

    Attributes:
        time: When the snapshot was taken, in seconds since 1970.
        bytes: Size of state.h5.
        sha256: Digest of each `piece_bytes` of it, the last one shorter.
    """

    format: Count
    step: Count
    time: Annotated[float, Field(ge=0, lt=1e11)]
    world_size: Annotated[Count, Field(ge=1)]
    bytes: Count
    piece_bytes: Annotated[Count, Field(ge=1 << 12, le=1 << 30)]
    sha256: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...]


_MANIFEST = TypeAdapter(Manifest)


def write_manifest(folder: Path, step: int, time: float, world_size: int, moved: Moved = idle) -> None:
    """Digests `folder`/state.h5 and writes manifest.json beside it, on the disk when this returns."""
    state = folder / STATE_FILE
    size = state.stat().st_size
    digests = _digests(state, size, PIECE_BYTES, 1, moved)
    fields = asdict(Manifest(FORMAT, step, time, world_size, size, PIECE_BYTES, digests))
    path = folder / MANIFEST_FILE
    text = (json.dumps({**fields, "manifest_sha256": _own_digest(fields)}, indent=1) + "\n").encode()
    write_pieces(path, len(text), [(0, memoryview(text))])


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks manifest.json alone.

    Raises:
        DamagedError: It is missing or damaged. FormatError: another version wrote it. OSError: it cannot be read.
    """
    path = folder / MANIFEST_FILE
    try:
        text = read_bytes(path, MAX_MANIFEST_BYTES, follow=True)
    except FileNotFoundError:
        raise DamagedError(f"{path}: missing") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        fields = parsed(text)
        if fields.pop("manifest_sha256") != _own_digest(fields):
            raise DamagedError(f"{path}: does not match its own digest")
        if fields.get("format") != FORMAT:
            raise FormatError(f"{path}: format {fields.get('format')}, but this version reads format {FORMAT}")
        found = _MANIFEST.validate_python(fields)
    except (DamagedError, FormatError):
        raise
    except ValidationError as error:
        names = ", ".join(dict.fromkeys(".".join(map(str, found["loc"][:1])) for found in error.errors()))
        raise DamagedError(f"{path}: cannot be understood: {names}") from None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, MemoryError):
        raise DamagedError(f"{path}: cannot be understood") from None
    if len(found.sha256) != -(-found.bytes // found.piece_bytes):
        raise DamagedError(f"{path}: has {len(found.sha256)} digests of {found.bytes:,} bytes")
    return found


def check(folder: Path, step: int, digests: bool = True, moved: Moved = idle) -> Manifest:
    """Whether the checkpoint of `step` in `folder` is whole.

    Args:
        digests: Read all of state.h5; else its size alone.

    Raises:
        DamagedError: It is not. FormatError: another version wrote it. OSError: it cannot be read.
    """
    manifest = read_manifest(folder)
    if manifest.step != step:
        raise DamagedError(f"{folder / MANIFEST_FILE}: is of step {manifest.step}")
    path = folder / STATE_FILE
    try:
        require_regular(path, follow=True)
        size = path.stat().st_size
    except FileNotFoundError:
        raise DamagedError(f"{path}: missing") from None
    if size != manifest.bytes:
        raise DamagedError(f"{path}: {size:,} bytes, but it had {manifest.bytes:,}")
    if digests:
        found = _digests(path, size, manifest.piece_bytes, THREADS, moved)
        for i, (ours, theirs) in enumerate(zip(found, manifest.sha256, strict=True)):
            if ours != theirs:
                start = i * manifest.piece_bytes
                end = min(size, start + manifest.piece_bytes)
                raise DamagedError(f"{path}: bytes {start:,} to {end:,} do not match their digest")
    return manifest


def _own_digest(fields: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _digests(path: Path, size: int, piece_bytes: int, threads: int, moved: Moved) -> tuple[str, ...]:
    def digest(start: int) -> str:
        found, at = hashlib.sha256(), start
        buffer = memoryview(bytearray(min(READ_BYTES, piece_bytes)))
        while at < start + piece_bytes:
            read = os.preadv(descriptor, [buffer[: start + piece_bytes - at]], at)
            if not read:
                break
            found.update(buffer[:read])
            at += read
        moved()
        return found.hexdigest()

    starts = range(0, size, piece_bytes)
    threads = min(threads, len(starts)) or 1
    with opened(path) as descriptor:
        if threads == 1:
            return tuple(map(digest, starts))
        with ThreadPoolExecutor(threads) as pool:
            return tuple(pool.map(digest, starts))
