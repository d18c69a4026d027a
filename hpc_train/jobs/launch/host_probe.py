"""Which hosts answer: each is asked to run `true` by the program with which mpirun reaches it."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from hpc_train.errors import UserError
from hpc_train.processes import kill, of_session

AGENT_VARIABLE = "OMPI_MCA_plm_rsh_agent"
"""Where it is set, Open MPI reaches hosts with its command, or the first one on PATH of several between colons."""
CONNECT_SECS, ANSWER_SECS = 10, 20.0
"""How long ssh may take to reach a host, and the whole question."""
POLL_SECS = 0.05
LOOK_UPS = 32
"""So many names are resolved at once: a name server that is dead costs seconds for each."""
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
    names: Collection[str], agent: Sequence[str], is_over: Callable[[], bool], limit_secs: float = ANSWER_SECS
) -> dict[str, str]:
    """Those of the hosts `names` that run no command, and so in words. All are asked at once. Local."""
    found = _asked(names, agent, is_over, limit_secs)
    return {name: f"{name} does not answer" for name in names if name not in found}


def names_of_this_machine(names: Collection[str]) -> frozenset[str]:
    """Those of `names` that are this machine's own, an alias or an address of it. Local; asks the name server."""
    own = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    addresses = {each.address for one in psutil.net_if_addrs().values() for each in one}

    def is_own(name: str) -> bool:
        with suppress(OSError, UnicodeError):
            return any(found[4][0] in addresses for found in socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM))
        return False

    others = [name for name in names if name not in own]
    with ThreadPoolExecutor(LOOK_UPS) as pool:
        found = pool.map(is_own, others)
        return frozenset(own.intersection(names)) | {name for name, here in zip(others, found, strict=True) if here}


def _asked(names: Collection[str], agent: Sequence[str], is_over: Callable[[], bool], limit_secs: float) -> set[str]:
    quiet = subprocess.DEVNULL
    asked = {}
    for name in names:
        with suppress(OSError):  # too many files or processes: this one does not answer
            asked[name] = subprocess.Popen(
                [*agent, name, "true"],
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
                start_new_session=True,
                env=dict(os.environ),
            )
    end = time.monotonic() + limit_secs
    while time.monotonic() < end and not is_over() and any(process.poll() is None for process in asked.values()):
        time.sleep(POLL_SECS)
    for process in asked.values():
        if process.poll() is None:
            kill(of_session(process.pid))
            process.wait()
    return {name for name, process in asked.items() if process.returncode == 0}
