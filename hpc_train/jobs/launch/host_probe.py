"""Which hosts answer: each is asked to run `true` by the program with which mpirun reaches it."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError
from hpc_train.jobs.launch.hosts import Host
from hpc_train.processes import kill, of_session

AGENT_VARIABLE = "OMPI_MCA_plm_rsh_agent"
"""Where it is set, Open MPI reaches hosts with its command, or the first one on PATH of several between colons."""
CONNECT_SECS, ANSWER_SECS = 10, 20.0
"""How long ssh may take to reach a host, and the whole question."""
POLL_SECS = 0.05
_OF_SSH = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECS}")


def agent_command(env: Mapping[str, str]) -> tuple[str, ...]:
    """The words before a host's name that run a command there.

    Raises:
        UserError: There is no such program.
    """
    given = env.get(AGENT_VARIABLE) or "ssh:rsh"
    for text in given.split(":"):
        try:
            words = shlex.split(text)
        except ValueError:
            continue
        if words and (path := shutil.which(words[0], path=env.get("PATH"))):
            more = _OF_SSH if Path(path).name == "ssh" else ()
            return (path, *words[1:], *more)
    raise UserError(
        f"--hosts: no program of {given!r} is on PATH to reach hosts with; install ssh, or set {AGENT_VARIABLE}"
    )


def silent(
    hosts: Sequence[Host], agent: Sequence[str], is_over: Callable[[], bool], limit_secs: float = ANSWER_SECS
) -> dict[str, str]:
    """Those of `hosts` that run no command, by name, and so in words. All are asked at once, this one is not. Local."""
    asked = [host.name for host in hosts if not is_here(host.name)]
    found = _asked(asked, agent, is_over, limit_secs)
    return {name: f"{name} does not answer" for name in asked if name not in found}


@cache
def is_here(name: str) -> bool:
    """Whether `name` is this machine: its name, an alias or an address of it. Local."""
    if name in (socket.gethostname(), socket.gethostname().partition(".")[0]):
        return True
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
        return any(_is_own(family, address) for family, _, _, _, address in found)
    return False


def _is_own(family: int, address: tuple[Any, ...]) -> bool:
    """An address that is another machine's cannot be bound to."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as one:
        one.bind(address)
        return True
    return False


def _asked(names: Collection[str], agent: Sequence[str], is_over: Callable[[], bool], limit_secs: float) -> set[str]:
    quiet = subprocess.DEVNULL
    asked = {
        name: subprocess.Popen(
            [*agent, name, "true"],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
            env=dict(os.environ),
        )
        for name in names
    }
    end = time.monotonic() + limit_secs
    while time.monotonic() < end and not is_over() and any(process.poll() is None for process in asked.values()):
        time.sleep(POLL_SECS)
    for process in asked.values():
        if process.poll() is None:
            kill(of_session(process.pid))
            process.wait()
    return {name for name, process in asked.items() if process.returncode == 0}
