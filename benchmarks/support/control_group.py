"""A control group of the kernel, of version 1 or 2, within this process's own, for as long as a benchmark needs it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAITS, WAIT_SECS = 100, 0.1


@contextmanager
def control_group(controller: str) -> Iterator[Path]:
    """The folder of a new group that `controller` (as version 1 calls it) can limit; it is removed at the end.

    Raises:
        OSError: This process may not make one.
    """
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    first = next((path for _, controllers, path in groups if controller in controllers.split(",")), None)
    within = f"/sys/fs/cgroup/{controller}{first}" if first is not None else f"/sys/fs/cgroup{groups[-1][2]}"
    group = Path(within) / f"hpc_train-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        _remove(group)


def prefix(group: Path) -> list[str]:
    """Before a command that is to run in the group. Pure."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]


def set_limit(group: Path, first: tuple[str, str], second: tuple[str, str]) -> None:
    """Writes a limit, as (file, text) of version 1 and of version 2. OSError where it is not taken."""
    name, text = first if (group / first[0]).exists() else second
    (group / name).write_text(text)


def _remove(group: Path) -> None:
    """Once all in it have ended, which takes a moment after a kill."""
    for _ in range(WAITS):
        try:
            return group.rmdir()
        except OSError:
            time.sleep(WAIT_SECS)
