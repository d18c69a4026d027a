"""How the ranks of a job are started: a launcher's command, ready to run."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_train.jobs.launch.hosts import Host
from hpc_train.jobs.launch.launchers.base import Launcher
from hpc_train.jobs.launch.launchers.mpirun import Mpirun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """How the ranks of a job are started: the command, and what is set in its environment beside this process's own.

    Attributes:
        cwd: Where they run; None: here.
        launcher: Whose command it is.
    """

    command: tuple[str, ...]
    settings: Mapping[str, str]
    cwd: Path | None = None
    launcher: type[Launcher] = Mpirun


def start_of(
    launcher: Launcher,
    ranks: int,
    program: Sequence[str],
    more: Mapping[str, str],
    output: Path | None = None,
    cwd: Path | None = None,
    hosts: Sequence[Host] = (),
) -> Start:
    """How to run `program` on `ranks` ranks, with `more` set for them; the rest as in Launcher.command."""
    command, settings = launcher.command(ranks, program, {**os.environ, **more}, output, hosts)
    log.debug(f"running {shlex.join(command)}")
    return Start(tuple(command), {**settings, **more}, cwd, type(launcher))
