"""One run of a trial: the processes that train it, as `hpc-train launch` starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpc_train.files import open_to_append
from hpc_train.folders import make_folder
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import LOG_FILE
from hpc_train.jobs.launch.error_excerpt import RunOutput, last_words
from hpc_train.jobs.launch.mpirun import PROGRESS
from hpc_train.processes import kill, with_variable
from hpc_train.telemetry.status import sound
from hpc_train.tuning.slots import Slot

DRIVER_VARIABLE = "HPC_TRAIN_DRIVER"
"""Set for all that a driver starts, which is so found where the driver was killed."""
ENDING_SECS = 60.0
"""How long orphans may take to save."""
POLL_SECS = 0.1


@dataclass(frozen=True)
class TrialCommand:
    """How a trial is started.

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

    def words(self) -> list[str]:
        """What follows `python -m`."""
        words = ["hpc_train", "launch", f"-n{self.ranks}", str(self.job_file), f"--job-dir={self.job_dir}"]
        return [*words, f"--data-root={self.data_root}", *(f"--set={setting}" for setting in self.settings)]


class TrialRun:
    """The processes of a trial, which are started here. What they print is appended to the job-dir's LOG_FILE.

    Raises:
        OSError: The log cannot be written, or no process started.
    """

    def __init__(self, command: TrialCommand, slot: Slot, driver: str) -> None:
        self._log = command.job_dir / LOG_FILE
        make_folder(self._log.parent, 0o700)
        with open_to_append(self._log, 0o600) as log:
            self._begin = os.fstat(log.fileno()).st_size
            with _bound_to(slot.cores):
                self._process = subprocess.Popen(
                    [sys.executable, "-m", *command.words()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, **_settings(slot, driver)},
                )
        self._job_dir = JobDir(command.job_dir)
        self._asked = 0

    @property
    def pid(self) -> int:
        """Of the process that looks after the ranks."""
        return self._process.pid

    def code(self) -> int | None:
        """The exit code; None: it has not ended."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def ask_to_stop(self) -> None:
        """Has the ranks save and leave."""
        if not self._asked:
            self._asked = 1
            self._process.send_signal(signal.SIGTERM)

    def end_at_once(self) -> None:
        """Has the ranks leave without saving."""
        for _ in range(2):
            self._process.send_signal(signal.SIGINT)

    def failure(self, code: int) -> str:
        """Why it has ended with `code`, in words."""
        words = last_words(RunOutput(self._log, self._begin))
        error = sound(self._job_dir.status()).get("error")
        if error is not None and words.signal is None and isinstance(error.get("message"), str):
            return str(error["message"])
        if words.message is not None:
            return words.message
        return words.lines[-1] if words.lines else f"exit code {code}"


def _settings(slot: Slot, driver: str) -> Mapping[str, str]:
    settings = {DRIVER_VARIABLE: driver, PROGRESS: "lines"}
    if slot.devices:
        settings["CUDA_VISIBLE_DEVICES"] = ",".join(slot.devices)
    return settings


@contextmanager
def _bound_to(cores: Sequence[int]) -> Iterator[None]:
    """What this thread starts meanwhile may use these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end_orphans(drivers: Sequence[str]) -> int:
    """Has what dead `drivers` have left on this machine save and leave, and ends what does not; how many processes."""
    left = _of(drivers)
    if not left:
        return 0
    pids = {process.pid for process in left}
    for process in left:
        with suppress(psutil.Error):
            if process.ppid() not in pids:  # which looks after the others
                process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + ENDING_SECS
    while (still := _of(drivers)) and time.monotonic() < deadline:
        time.sleep(POLL_SECS)
    kill(still)
    return len(left)


def _of(drivers: Sequence[str]) -> list[psutil.Process]:
    return [process for found in with_variable(DRIVER_VARIABLE, drivers).values() for process in found]
