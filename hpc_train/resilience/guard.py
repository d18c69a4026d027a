"""Guard: a small process between mpirun and a rank, which lets the rank be lost without the end of the job.

Open MPI ends all ranks when a process that it has started is killed by a signal. So that process is the guard, and the
rank its child: signals and exit code are passed on. Where a rank has said that the others can do without it
(`dispense`) and is killed by a signal, the guard leaves a file that says so, and ends with 0, which mpirun takes for a
normal end if it allows ranks to leave without MPI_Finalize (`orte_allowed_exit_without_sync`). The death of the guard
is the rank's.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

ALLOWED = "OMPI_MCA_orte_allowed_exit_without_sync"
"""Set to 1 for mpirun by what starts a job that goes on without a lost rank. Open MPI gives it to the ranks."""

_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGTSTP,
)
_WATCHED = (*_PASSED_ON, signal.SIGCHLD)
_PAGE = 16384
_PR_SET_PDEATHSIG = 1

_shared: mmap.mmap | None = None


def stand_guard(env: Mapping[str, str]) -> None:
    """Makes this process the guard of a child, which alone returns, where `env` is that of a rank that is to have one.

    To be called before threads are started, and before MPI is.
    """
    global _shared
    if env.get(ALLOWED) != "1" or "OMPI_COMM_WORLD_SIZE" not in env:
        return
    shared = mmap.mmap(-1, _PAGE)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    guard = os.getpid()
    rank = os.fork()
    if rank:
        _guard(rank, shared)
    os.setpgid(0, 0)  # signals to the guard's group reach the rank through the guard, once
    end_with(guard)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _shared = shared


def is_guarded() -> bool:
    """Whether this rank has a guard."""
    return _shared is not None


def dispense(folder: Path, rank: int, ranks: int) -> None:
    """From now on the job goes on without this rank, as long as not all `ranks` that say so are lost.

    A rank that is killed leaves `folder`/rank-<rank>.json.
    """
    assert _shared is not None, "this rank has a guard"
    text = json.dumps({"folder": str(folder), "rank": rank, "ranks": ranks}).encode()
    if len(text) < _PAGE - 1:
        _shared[1 : 1 + len(text)] = text
        _shared[0] = 1


def end_with(parent: int) -> None:
    """From now on this process, a child of `parent`, is killed where that ends. Local."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _guard(rank: int, shared: mmap.mmap) -> NoReturn:
    """Passes on what comes until the rank has ended, and ends as it did."""
    try:
        while True:
            number = signal.sigwait(_WATCHED)
            if number != signal.SIGCHLD:
                os.kill(rank, signal.SIGSTOP if number == signal.SIGTSTP else number)
                continue
            ended, status = os.waitpid(rank, os.WNOHANG)
            if ended:
                _end_as(status, shared)
    finally:
        os._exit(1)


def _end_as(status: int, shared: mmap.mmap) -> NoReturn:
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    try:
        if shared[0] and _has_noted(json.loads(shared[1:].rstrip(b"\0")), number):
            os._exit(0)
    except OSError:  # nobody would know
        pass
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has left its own
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _has_noted(about: dict[str, object], number: int) -> bool:
    """Writes the file of a lost rank where others are left; whether they are."""
    from hpc_train.files import create, replace_text

    folder = Path(str(about["folder"]))
    found = {"rank": about["rank"], "signal": signal.Signals(number).name, "time": time.time()}
    os.close(create(folder / f"gone-{about['rank']}"))  # of which the chief takes no notice
    if sum(name.startswith("gone-") for name in os.listdir(folder)) >= int(str(about["ranks"])):
        return False
    replace_text(folder / f"rank-{about['rank']}.json", json.dumps(found) + "\n", to_disk=False)
    return True
