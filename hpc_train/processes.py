"""Processes of this machine by pid and start time: a pid alone may be another process's by now."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

CLOCK_SLACK_SECS = 2.0
"""By how much a process's start may seem later than it was: the kernel counts it from the machine's start on."""

_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def identity(pid: int | None = None) -> dict[str, Any]:
    """What makes a process one alone, for a record: `host`, `pid`, `process_start` and `boot_id`.

    `process_start` is in clock ticks since the machine was started, `boot_id` names that start; None where there is no
    such process, and where the system has no such name. Local.

    Args:
        pid: None: this process.
    """
    pid = os.getpid() if pid is None else pid
    process = _running(pid)
    start = _ticks(process) if process is not None else None
    return {"host": socket.gethostname(), "pid": pid, "process_start": start, "boot_id": _boot_id()}


def user_name() -> str:
    """This user's name; the number where the system knows none, as in containers. Local."""
    with suppress(KeyError, OSError, ImportError):
        return getpass.getuser()
    return str(os.getuid())


def home_folder() -> Path:
    """This user's home; "/" where the system knows none, as in containers. Local."""
    with suppress(RuntimeError):
        return Path.home()
    return Path("/")


def is_alive(record: Mapping[str, Any], written: float | None = None) -> bool:
    """Whether the process of `record`, an `identity` made on this machine, still runs. Local.

    A record without a start time, as older versions wrote, counts as alive where its pid is in use, unless by a
    process that is younger than the record.

    Args:
        written: When the record was written, seconds since 1970; None: not known.
    """
    pid, start, boot = record.get("pid"), record.get("process_start"), record.get("boot_id")
    process = _running(pid) if isinstance(pid, int) and pid > 0 else None
    if process is None:
        return False
    if isinstance(start, int):
        return start == _ticks(process) and boot in (None, _boot_id())
    try:
        return written is None or process.create_time() <= written + CLOCK_SLACK_SECS
    except psutil.Error:
        return False


def with_variable(name: str, values: Collection[str]) -> dict[str, list[psutil.Process]]:
    """The running processes with this variable in their environment, by its value, as far as this user may look. Local.

    Each of `values` has a list.
    """
    found: dict[str, list[psutil.Process]] = {value: [] for value in values}
    for process in _those(lambda process: process.environ().get(name) in found):
        with suppress(psutil.Error):
            found[process.environ()[name]].append(process)
    return found


def of_session(leader: int) -> list[psutil.Process]:
    """The running processes of the session that the process `leader` has begun. Local."""
    return _those(lambda process: os.getsid(process.pid) == leader)


def lineage(pid: int) -> list[psutil.Process]:
    """The process `pid`, its parent, its parent's parent and so on, as far as they are this user's. Local."""
    found: list[psutil.Process] = []
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.parents()):
            if one.uids().real != os.getuid():
                break
            found.append(one)
    return found


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; one that nobody has waited for yet has. Local."""
    try:
        return process.is_running() and process.status() not in _ENDED
    except psutil.Error:
        return False


def kill(processes: Iterable[psutil.Process]) -> None:
    """Sends SIGKILL to those that still run and belong to this user. Local."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def _those(wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():  # not process_iter(), which keeps those of pids that are another's by now
        with suppress(psutil.Error, OSError):  # it has just ended, or is another user's
            process = psutil.Process(pid)
            if wanted(process) and process.status() not in _ENDED:
                found.append(process)
    return found


def _running(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() in _ENDED else process
    except psutil.Error:
        return None


def _ticks(process: psutil.Process) -> int | None:
    """When it was started, in clock ticks since the machine was; None where it has ended."""
    try:
        while True:  # until the clock is not set between the two
            boot = psutil.boot_time()
            secs: float = process.create_time() - boot
            if psutil.boot_time() == boot:
                return round(secs * os.sysconf("SC_CLK_TCK"))
    except psutil.Error:
        return None


@cache
def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
