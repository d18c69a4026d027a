"""What a run of a trial is, and what all runs have in common: their command, log, environment and cores."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpc_train.distributed.binding import BIND_VARIABLE
from hpc_train.files import open_to_append
from hpc_train.folders import make_folder
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import LOG_FILE
from hpc_train.jobs.launch.error_excerpt import LastWords
from hpc_train.jobs.launch.run import EXIT_LAUNCHER_ENDED, PROGRESS
from hpc_train.outcome import EXIT_FAILED, signal_name
from hpc_train.telemetry.energy.node import SHARED_VARIABLE
from hpc_train.telemetry.status import sound
from hpc_train.tuning.execution.slots import Slot

DRIVER_VARIABLE = "HPC_TRAIN_DRIVER"
"""Set for all that a driver starts, which is so found where the driver was killed."""
WITHIN_A_STEP = {"OMPI_MCA_plm": "isolated", "OMPI_MCA_ras": "^slurm", "SLURM_EXPORT_ENV": "ALL"}
"""For an mpirun that is a step of an allocation itself, and starts ranks on its own node alone."""


@dataclass(frozen=True)
class TrialCommand:
    """How a trial is trained.

    Attributes:
        job_file: In the copy of the code.
        data_root: The folder that shards are relative to.
        settings: `KEY=VALUE` each, laid over the job file.
    """

    job_file: Path
    data_root: Path
    job_dir: Path
    ranks: int
    settings: Sequence[str]

    @property
    def log(self) -> Path:
        """What the ranks print is appended to it."""
        return self.job_dir / LOG_FILE

    def words(self) -> list[str]:
        """The command by which anybody would train it, behind `python -m`."""
        words = ["hpc_train", "launch", f"-n{self.ranks}", str(self.job_file), f"--job-dir={self.job_dir}"]
        return [*words, f"--data-root={self.data_root}", *(f"--set={setting}" for setting in self.settings)]


class TrialRun(ABC):
    """One run of a trial, which goes on while this is looked at."""

    @abstractmethod
    def code(self) -> int | None:
        """The exit code; None: it has not ended."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Has the ranks save and leave the trial."""

    @abstractmethod
    def end_at_once(self) -> None:
        """Has the ranks leave without saving."""

    @abstractmethod
    def failure(self, code: int) -> str:
        """Why it has ended with `code`, in words."""

    def never_began(self) -> bool:
        """Whether it has ended because no ranks came up, for which the trial is not to blame."""
        return False


class RankStarter(ABC):
    """What starts the runs of a slot's trials. A context manager, at whose end nothing of it runs any more."""

    @abstractmethod
    def begin(self, command: TrialCommand) -> TrialRun:
        """Begins a run; the one before has ended.

        Raises:
            OSError: Its log cannot be written, or no process started.
        """

    def __enter__(self) -> RankStarter:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def begin_log(path: Path) -> int:
    """Makes the folder of a log; how long the log is."""
    make_folder(path.parent, 0o700)
    with open_to_append(path, 0o600) as log:
        return os.fstat(log.fileno()).st_size


def code_in_truth(code: int, *words: LastWords) -> int:
    """`code`, with which a run has ended, unless it is that of a failure, and `words` tell of none. Pure."""
    said = any(one.rank is not None or one.message is not None for one in words)
    return EXIT_LAUNCHER_ENDED if code == EXIT_FAILED and not said else code


def failure_in_words(command: TrialCommand, code: int, words: LastWords) -> str:
    """Why a run has ended with `code`; `words` are what is known of what it printed."""
    if words.signal is not None:
        return words.message or f"killed by {words.signal}"
    if not command.job_dir.is_dir():
        return f"{command.job_dir}: is gone"
    error = sound(JobDir(command.job_dir).status()).get("error")
    if error is not None and isinstance(error.get("message"), str) and words.message is None:
        return str(error["message"])
    if words.message is None and (name := signal_name(code)) is not None:
        return f"mpirun was ended by {name}"
    return words.message or (words.lines[-1] if words.lines else f"exit code {code}")


def rank_settings(slot: Slot, driver: str, ranks: int) -> dict[str, str]:
    """Variables for what starts `ranks` ranks in a slot."""
    settings = {DRIVER_VARIABLE: driver, PROGRESS: "lines"}
    if not slot.is_alone:
        settings[SHARED_VARIABLE] = "1"
    if not slot.is_bound:
        settings["OMP_NUM_THREADS"] = str(max(1, len(slot.cores) // ranks))
        settings[BIND_VARIABLE] = "none"  # trials at once would take the same cores
    if slot.node is not None:
        return {**settings, **WITHIN_A_STEP}
    if slot.devices:
        settings["CUDA_VISIBLE_DEVICES"] = ",".join(slot.devices)
    return settings


@contextmanager
def bound_to(slot: Slot) -> Iterator[None]:
    """What this thread starts meanwhile may use the slot's cores alone, where they are known."""
    if not slot.is_bound:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, slot.cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
