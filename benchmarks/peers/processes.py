"""Starts the processes of a cluster of tf.distribute or tf.estimator on this machine, without MPI."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from support.launch import environment

POLL_SECS = 0.1
LEAVE_SECS = 10.0

Task = tuple[str, int]
"""Kind and number within the kind, as in TF_CONFIG."""


def free_addresses(count: int) -> list[str]:
    """So many addresses of this host that nobody listens at now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def tf_configs(kinds: Mapping[str, int]) -> dict[Task, str]:
    """TF_CONFIG of each task of a cluster with so many tasks of each kind."""
    addresses = iter(free_addresses(sum(kinds.values())))
    cluster = {kind: [next(addresses) for _ in range(count)] for kind, count in kinds.items()}
    return {
        (kind, index): json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        for kind, count in kinds.items()
        for index in range(count)
    }


def run_cluster(
    kinds: Mapping[str, int],
    arguments: Sequence[str],
    folder: Path,
    limit_secs: float,
    awaited: Sequence[str],
    python: str = sys.executable,
) -> None:
    """Runs `python ARGUMENTS` for each task of a cluster until those whose kind is in `awaited` have ended.

    The others are ended then. Writes what each prints to `<kind>-<number>.log` in `folder`.

    Raises:
        RuntimeError: One has failed, or they took longer than `limit_secs`; with what it printed last.
    """
    with ExitStack() as stack:
        started: dict[Task, subprocess.Popen[bytes]] = {}
        for task, config in tf_configs(kinds).items():
            log = stack.enter_context(open(_log(folder, task), "wb"))
            started[task] = subprocess.Popen(
                [python, *arguments],
                cwd=folder,
                env=environment({"TF_CONFIG": config, "PATH": _path(python)}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_end, started[task])
        _wait(started, folder, limit_secs, awaited)


def _wait(
    started: Mapping[Task, subprocess.Popen[bytes]], folder: Path, limit_secs: float, awaited: Sequence[str]
) -> None:
    end = time.monotonic() + limit_secs
    while True:
        codes = {task: process.poll() for task, process in started.items()}
        for task, code in codes.items():
            if code:
                raise _failure(folder, task, f"ended with code {code}")
        missing = [task for task, code in codes.items() if task[0] in awaited and code is None]
        if not missing:
            return
        if time.monotonic() > end:
            raise _failure(folder, missing[0], f"still runs after {limit_secs:.0f} s")
        time.sleep(POLL_SECS)


def _failure(folder: Path, task: Task, what: str) -> RuntimeError:
    lines = _log(folder, task).read_text(errors="replace").splitlines()[-15:]
    return RuntimeError("\n".join([f"{task[0]} {task[1]} {what}", *lines]))


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(LEAVE_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _log(folder: Path, task: Task) -> Path:
    return folder / f"{task[0]}-{task[1]}.log"


def _path(python: str) -> str:
    return os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
