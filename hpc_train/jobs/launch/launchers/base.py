"""What a launcher is to the rest of hpc_train: how its command is made, and what it needs and says while it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from hpc_train.jobs.launch.hosts import Host
from hpc_train.jobs.launch.launcher_output import LauncherOutput


class Launcher(ABC):
    """A program that starts ranks. It hands SIGUSR1 on to them, and ends them at SIGTERM.

    Attributes:
        name: As for `--launcher`.
        draws: Whether what a rank prints is shown before its line has ended, as a bar needs it.
    """

    name: str
    draws = True

    @abstractmethod
    def command(
        self,
        ranks: int,
        program: Sequence[str],
        env: Mapping[str, str],
        output: Path | None = None,
        hosts: Sequence[Host] = (),
    ) -> tuple[list[str], dict[str, str]]:
        """The command that runs `program` on `ranks` ranks, and the variables to set for it beside `env`.

        Args:
            output: The folder for a file of each rank's output, where the launcher can keep one; None for none.
            hosts: Where; none: where the launcher chooses to.
        """

    @staticmethod
    @abstractmethod
    def output() -> LauncherOutput:
        """The filter for what it writes in one run."""

    @staticmethod
    def session() -> AbstractContextManager[Mapping[str, str]]:
        """What has to be there while it runs once, and the variables that tell it so."""
        return nullcontext({})
