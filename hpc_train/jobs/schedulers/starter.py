"""What has started a job by hand on this machine, as the parents of its chief show it, and how it is stopped."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hpc_train.errors import SchedulerError, UserError
from hpc_train.processes import is_alive, lineage, runs

AGAIN_SECS, LONGEST_SECS = 0.5, 30.0
"""How often a process is asked to end at once, and for how long."""
MPIRUNS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
PACKAGE = ("hpc-train", "hpc_train")


@dataclass(frozen=True)
class Starter:
    """The process to be signalled.

    Attributes:
        what: For people: "hpc-train launch", "mpirun", "horovodrun", or "the job's process".
        saves: The signal that has the ranks save first; None: there is none.
        ends: The one that ends them at once, `times` times.
    """

    process: psutil.Process
    what: str
    saves: signal.Signals | None
    ends: signal.Signals
    times: int

    def command(self, save: bool) -> str:
        """What a user types instead."""
        number = self.saves if save and self.saves is not None else self.ends
        one = f"kill -{number.name.removeprefix('SIG')} {self.process.pid}"
        return one if number is self.saves else "; ".join([one] * self.times)


def starter_of(status: Mapping[str, Any]) -> Starter | None:
    """What has started the job with this `status`; None where its chief does not run on this machine (any more)."""
    if not is_alive(status, status.get("started")):
        return None
    for process in reversed(lineage(status["pid"])):
        with suppress(psutil.Error):
            if (found := _known(process, process.cmdline())) is not None:
                return found
    with suppress(psutil.Error):
        return Starter(psutil.Process(status["pid"]), "the job's process", signal.SIGTERM, signal.SIGINT, 2)
    return None


def _known(process: psutil.Process, words: Sequence[str]) -> Starter | None:
    program, *arguments = _program_of(words)
    if program in MPIRUNS:
        return Starter(process, "mpirun", signal.SIGUSR1, signal.SIGTERM, 1)
    if program == "horovodrun":
        return Starter(process, "horovodrun", None, signal.SIGINT, 1)
    values = {"--log-level"}
    verbs = [
        word
        for before, word in zip(["", *arguments], arguments, strict=False)
        if not word.startswith("-") and before not in values
    ]
    if program in PACKAGE and verbs[:1] == ["launch"]:
        return Starter(process, "hpc-train launch", signal.SIGTERM, signal.SIGINT, 2)
    return None


def _program_of(words: Sequence[str]) -> list[str]:
    """The name of what a process runs, a module or script where that is Python, and its arguments. Pure.

    Others that have such words as arguments of their own, as a terminal multiplexer has, run something else.
    """
    if not words:
        return [""]
    name, rest = Path(words[0]).name, list(words[1:])
    if re.fullmatch(r"python[0-9.]*", name):
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            del rest[0]
        rest = rest[1:] if rest[:1] == ["-m"] else rest
        name, rest = (Path(rest[0]).name, rest[1:]) if rest else ("", [])
    return [name, *rest]


def stop(starter: Starter, status: Mapping[str, Any], save: bool) -> None:
    """Ends the job that `starter` has started: with `save` its ranks save first, which is not waited for.

    Raises:
        UserError: It is another user's, or saves at no signal.
        SchedulerError: It still runs after LONGEST_SECS.
    """
    if save and starter.saves is None:
        raise UserError(f"{starter.what} passes no signal on that has the ranks save; cancel it without --save")
    deadline = time.monotonic() + LONGEST_SECS
    found: Starter | None = starter
    while found is not None:
        number = found.saves if save and found.saves is not None else found.ends
        try:
            found.process.send_signal(number)
            if save:
                return
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied:
            raise UserError(f"{found.what} (pid {found.process.pid}) is another user's") from None
        if time.monotonic() > deadline:
            raise SchedulerError(f"{found.what} still runs (pid {found.process.pid}): kill -KILL it")
        time.sleep(AGAIN_SECS)
        if not runs(found.process):
            found = starter_of(status)  # the job may outlive what has started it
