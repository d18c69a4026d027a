"""Ranks that begin in a fork: most of a tiny job's time is its ranks' import of TensorFlow, so one process does it.

Ranks of launchers and those of some jobs of Slurm begin anew, as those of users do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_SECS = 600.0

_lock = threading.Lock()
_servers: list[ForkServer] = []


def forked(program: Sequence[object], env: Mapping[str, str]) -> list[str]:
    """The command that runs `python PROGRAM…` in a fork: PROGRAM is -c CODE, -m MODULE or a script.

    All forks have the hash seed of one process, and its `env` where that counts before Python starts.
    """
    return [sys.executable, "-I", "-S", str(PROGRAMS / "rank.py"), str(_server(env).socket), *map(str, program)]


def forks(env: Mapping[str, str]) -> dict[str, str]:
    """The environment in which hpc-train runs in forks, whoever starts it; but for `hpc-train launch` itself."""
    return {"TESTS_FORKS": str(_server(env).socket)}


def _server(env: Mapping[str, str]) -> ForkServer:
    with _lock:
        if not _servers:
            _servers.append(ForkServer(env))
    return _servers[0]


def end_server() -> None:
    """Ends the process that forks; those that it has forked end by themselves."""
    while _servers:
        _servers.pop().end()


class ForkServer:
    """The process that forks, see programs/fork_server.py."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forks-"))
        self.socket, log = self._folder / "socket", self._folder / "log"
        with open(log, "w") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "fork_server.py"), str(self.socket)],
                env={**env, "OMP_NUM_THREADS": "1"},  # with more, NumPy would start threads, which a fork would lose
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + LIMIT_SECS
        while not self.socket.exists():
            assert self._process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_SECS)
        shutil.rmtree(self._folder, ignore_errors=True)
