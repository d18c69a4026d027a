"""A file system on a loop device that is read at so many bytes a second: a slow source of shards. For root."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.control_group import control_group, prefix, set_limit
from support.page_cache import drop
from support.usage import MissingError

ROOM = 64 << 20
"""For what a file system keeps beside its files."""
PROBE_BYTES, PROBE_SECS = 16 << 20, 60
NEAR = (0.5, 1.25)
"""How far a probe's rate may be from the limit; the kernel lets a first burst through."""
PROBE = """
import os, sys, time
descriptor, begin = os.open(sys.argv[1], os.O_RDONLY), time.monotonic()
while os.read(descriptor, 1 << 20):
    pass
print(time.monotonic() - begin)
"""


@dataclass(frozen=True)
class Source:
    """A mounted file system, and the control group whose processes read it slowly."""

    folder: Path
    group: Path

    @property
    def prefix(self) -> list[str]:
        """Before a command that is to run in the group."""
        return prefix(self.group)


@contextmanager
def slow_source(parent: Path, nbytes: int, bytes_per_sec: int) -> Iterator[Source]:
    """Makes one that holds `nbytes` of files, of which processes in its group read so many a second together.

    Raises:
        MissingError: It cannot be had here, and why; or the limit is not kept.
    """
    if os.getuid() != 0:
        raise MissingError("a loop device and a limit of what is read need root")
    folder, image = parent / "source", parent / "image"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(nbytes + nbytes // 8 + ROOM)
    with ExitStack() as stack:
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        device = _run("losetup", "--find", "--show", str(image))
        stack.callback(_run, "losetup", "--detach", device)
        _run("mount", "-o", "noatime", device, str(folder))
        stack.callback(_unmount, folder)
        try:
            group = stack.enter_context(control_group("blkio"))
            _limit(group, Path(device).stat().st_rdev, bytes_per_sec)
        except OSError as error:
            raise MissingError(f"what is read cannot be limited: {error.strerror} ({error.filename})") from None
        source = Source(folder, group)
        _try(source, bytes_per_sec)
        yield source


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise MissingError(f"{command[0]}: {done.stderr.strip() or f'code {done.returncode}'}")
    return done.stdout.strip()


def _limit(group: Path, device: int, bytes_per_sec: int) -> None:
    number = f"{os.major(device)}:{os.minor(device)}"
    first = "blkio.throttle.read_bps_device", f"{number} {bytes_per_sec}"
    set_limit(group, first, ("io.max", f"{number} rbps={bytes_per_sec}"))


def _try(source: Source, bytes_per_sec: int) -> None:
    """Reads a file to see that the limit is kept."""
    probe = source.folder / "probe"
    probe.write_bytes(bytes(PROBE_BYTES))
    drop([str(probe)])
    secs = float(_run(*source.prefix, sys.executable, "-c", PROBE, str(probe)))
    probe.unlink()
    if not NEAR[0] < PROBE_BYTES / secs / bytes_per_sec < NEAR[1]:
        raise MissingError(
            f"a limit of {bytes_per_sec / 1e6:.0f} MB/s is accepted, and {PROBE_BYTES / secs / 1e6:.0f} MB/s are read"
        )


def _unmount(folder: Path) -> None:
    for _ in range(50):  # what ended a moment ago may still have files open
        try:
            _run("umount", str(folder))
            return
        except MissingError:
            time.sleep(0.1)
    _run("umount", "--lazy", str(folder))
