"""Starts the processes of a cluster of tf.distribute or tf.estimator on this machine, without MPI."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from support.launch import Started, environment

POLL_SECS = 0.1
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
    awaited: str,
    python: str = sys.executable,
) -> None:
    """Runs `python ARGUMENTS` for each task of a cluster until those of the kind `awaited` have ended.

    The others are ended then. Writes what each prints to `<kind>-<number>.log` in `folder`.

    Raises:
        RuntimeError: One has failed, or they took longer than `limit_secs`; with what it printed last.
    """
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
    end = time.monotonic() + limit_secs
    with ExitStack() as stack:
        started = {}
        for (kind, index), config in tf_configs(kinds).items():
            env, log = environment({"TF_CONFIG": config, "PATH": path}), folder / f"{kind}-{index}.log"
            task = Started(f"{kind} {index}", [python, *arguments], folder, env, log)
            started[kind, index] = stack.enter_context(task)
        while missing := [task for (kind, _), task in started.items() if kind == awaited and task.running]:
            for task in started.values():
                if not task.running:
                    task.wait(0)
            if time.monotonic() > end:
                raise missing[0].failure(f"still running after {limit_secs:.0f} s")
            time.sleep(POLL_SECS)
        for (kind, _), task in started.items():
            if kind == awaited:
                task.wait(0)
