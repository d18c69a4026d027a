"""Runs of trials: on ranks that a slot keeps, or on ranks of their own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpc_train.distributed.world import Threads
from hpc_train.files import open_to_append
from hpc_train.folders import make_folder, make_new_folder, remove_tree
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import LOG_FILE
from hpc_train.jobs.launch.error_excerpt import LastWords, RunOutput, last_words
from hpc_train.jobs.launch.mpirun import PROGRESS, SESSION_VARIABLE, SESSION_VARIABLES, Mpirun, end_session, start_of
from hpc_train.outcome import EXIT_AT_ONCE, EXIT_LOST_NODE, STOP_CODES
from hpc_train.processes import kill, with_variable
from hpc_train.telemetry.status import mark_ended, sound
from hpc_train.tuning.assignments import Assignment, AssignmentFolder
from hpc_train.tuning.slots import Slot

DRIVER_VARIABLE = "HPC_TRAIN_DRIVER"
"""Set for all that a driver starts, which is so found where the driver was killed."""
ENDING_SECS = 60.0
"""How long orphans may take to save."""
POLL_SECS = 0.1
STOP_AGAIN_SECS, STOP_TIMES = 2.0, 15
"""How often, and how many times, ranks are asked to stop: mpirun loses what comes before it has started them."""
WITHIN_A_STEP = {"OMPI_MCA_plm": "isolated", "OMPI_MCA_ras": "^slurm", "SLURM_EXPORT_ENV": "ALL"}
"""For an mpirun that is a step of an allocation itself, and starts ranks on its own node alone."""
SESSION_PREFIX = "ompi-"
"""Of the folders in which mpiruns keep what they need while they run."""
BEGIN_SECS, SILENT_SECS = 600.0, 60.0
"""How long ranks may take to come up, and be silent: they report each second, by a thread of their own."""
LEAVING_SECS = 10.0
"""How long ranks that have nothing to do may take to leave."""


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


class FreshRanks(RankStarter):
    """Starts ranks for each run, as `hpc-train launch` does."""

    def __init__(self, slot: Slot, driver: str) -> None:
        self._slot, self._driver = slot, driver

    def begin(self, command: TrialCommand) -> TrialRun:
        begin = _begin_log(command.log)
        with open_to_append(command.log, 0o600) as log, _bound_to(self._slot):
            process = subprocess.Popen(
                [*self._slot.prefix, sys.executable, "-m", *command.words()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **_settings(self._slot, self._driver, command.ranks)},
            )
        return _LaunchedRun(command, process, begin)


class _LaunchedRun(TrialRun):
    def __init__(self, command: TrialCommand, process: subprocess.Popen[bytes], begin: int) -> None:
        self._command, self._process, self._begin, self._asked = command, process, begin, False

    def code(self) -> int | None:
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def ask_to_stop(self) -> None:
        if not self._asked:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)

    def end_at_once(self) -> None:
        for _ in range(2):
            self._process.send_signal(signal.SIGINT)

    def failure(self, code: int) -> str:
        return _in_words(self._command, code, last_words(RunOutput(self._command.log, self._begin)))


class KeptRanks(RankStarter):
    """Keeps ranks between runs, which costs no start of Python, TensorFlow and MPI for each.

    They are started again after a run that has failed.

    Args:
        folder: For what the ranks and this process tell each other; made here, and removed at the end.
    """

    def __init__(self, mpirun: Mpirun, ranks: int, threads: Threads, slot: Slot, driver: str, folder: Path) -> None:
        self._mpirun, self._ranks, self._threads = mpirun, ranks, threads
        self._slot, self._driver, self._folder = slot, driver, folder
        self._started: _Ranks | None = None
        self._starts = 0

    def __enter__(self) -> KeptRanks:
        self._started = self._start()
        return self

    def begin(self, command: TrialCommand) -> TrialRun:
        return self._begun(command, only_names=False)

    def names(self, command: TrialCommand) -> KeptRun:
        """Begins to find out what the evaluations of a job report, without training it."""
        return self._begun(command, only_names=True)

    def _begun(self, command: TrialCommand, only_names: bool) -> KeptRun:
        begin = _begin_log(command.log)
        if self._started is None or self._started.has_left():
            self._started = self._start()
        return self._started.begin(command, begin, only_names)

    def _start(self) -> _Ranks:
        self._close()
        folder = self._folder / str(self._starts)
        self._starts += 1
        make_folder(folder, 0o700)
        program = [sys.executable, "-m", "hpc_train.tuning.ranks", str(folder), self._threads]
        settings = _settings(self._slot, self._driver, self._ranks)
        own = Path(tempfile.gettempdir(), f"{SESSION_PREFIX}{self._driver}-{secrets.token_hex(4)}")
        make_new_folder(own, 0o700)
        if not SESSION_VARIABLES & os.environ.keys():
            settings[SESSION_VARIABLE] = str(own)
        start = start_of(self._mpirun, self._ranks, program, settings)
        log = folder / "mpirun.log"
        with open_to_append(log, 0o600) as output, _bound_to(self._slot):
            process = subprocess.Popen(
                [*self._slot.prefix, *start.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **start.settings},
            )
        return _Ranks(process, AssignmentFolder(folder), log, own)

    def _close(self) -> None:
        if self._started is not None:
            self._started.close()
            self._started = None

    def __exit__(self, *_: object) -> None:
        self._close()
        remove_tree(self._folder)


class _Ranks:
    """Ranks that wait for trials, or train one."""

    def __init__(
        self, process: subprocess.Popen[bytes], assignments: AssignmentFolder, log: Path, session: Path
    ) -> None:
        self.process, self.assignments, self.log = process, assignments, log
        self._session, self._given = session, 0
        self._life: int | None = None
        self._heard = time.monotonic()

    def begin(self, command: TrialCommand, begin: int, only_names: bool) -> KeptRun:
        """Gives them their next run; `begin` is how long its log is."""
        number, self._given, self._heard = self._given, self._given + 1, time.monotonic()
        run = KeptRun(self, number, command, begin)
        files = (str(command.job_file), str(command.data_root), str(command.job_dir), str(command.log))
        self.assignments.assign(number, Assignment(*files, tuple(command.settings), time.time(), only_names))
        return run

    def has_left(self) -> bool:
        """Whether they have ended, or are about to."""
        last = self.assignments.end(self._given - 1) if self._given else None
        return self.process.poll() is not None or (last is not None and not _stays(last.code))

    def has_begun(self) -> bool:
        """Whether the ranks ever were there."""
        return self.assignments.last_life() is not None

    def _are_silent(self) -> bool:
        """Whether nothing was heard of the ranks for too long: their node is gone, which Slurm tells minutes later."""
        if (life := self.assignments.last_life()) != self._life:
            self._life, self._heard = life, time.monotonic()
        return time.monotonic() - self._heard > (BEGIN_SECS if life is None else SILENT_SECS)

    def code(self) -> int | None:
        """With which mpirun has ended, after which nothing of it is left."""
        code = self.process.poll()
        if code is None and self._are_silent():
            self.process.kill()
            self.process.wait()
            code = EXIT_LOST_NODE
        if code is not None:
            end_session(self.process.pid)
        return code if code is None or code >= 0 else 128 - code

    def close(self) -> None:
        """Has the ranks leave, and ends those that do not."""
        with suppress(OSError):
            self.assignments.dismiss()
        try:
            self.process.wait(LEAVING_SECS)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVING_SECS)
        end_session(self.process.pid)
        self.process.poll()
        remove_tree(self._session)


class KeptRun(TrialRun):
    """A run on ranks that a slot keeps."""

    def __init__(self, ranks: _Ranks, number: int, command: TrialCommand, begin: int) -> None:
        self._ranks, self._number, self._command, self._begin = ranks, number, command, begin
        self._asked, self._times, self._at_once = 0.0, 0, False

    def code(self) -> int | None:
        if (end := self._ranks.assignments.end(self._number)) is not None:
            return end.code
        if (code := self._ranks.code()) is not None:
            code = EXIT_AT_ONCE if self._at_once else code
            if sound(JobDir(self._command.job_dir).status()).get("state") == "running":
                words = last_words(RunOutput(self._ranks.log))
                mark_ended(self._command.job_dir, words.rank, words.signal, self.failure(code))
            return code or 1
        if self._asked and time.monotonic() - self._asked > STOP_AGAIN_SECS and self._times < STOP_TIMES:
            self._ask()
        return None

    def names(self) -> dict[str, list[str]]:
        """The metrics by the kind of their evaluation, once it has ended."""
        end = self._ranks.assignments.end(self._number)
        return end.names if end is not None else {}

    def ask_to_stop(self) -> None:
        if not self._asked:
            self._ask()

    def _ask(self) -> None:
        self._asked, self._times = time.monotonic(), self._times + 1
        self._ranks.process.send_signal(signal.SIGUSR1)

    def end_at_once(self) -> None:
        self._at_once = True
        self._ranks.process.terminate()

    def never_began(self) -> bool:
        return self._ranks.process.poll() is not None and not self._ranks.has_begun()

    def failure(self, code: int) -> str:
        notice, printed = last_words(RunOutput(self._ranks.log)), last_words(RunOutput(self._command.log, self._begin))
        return _in_words(self._command, code, notice if notice.signal is not None else printed)


def _stays(code: int) -> bool:
    """Whether kept ranks wait for another trial after one that has ended with `code`."""
    return code in (0, *STOP_CODES.values())


def _begin_log(path: Path) -> int:
    """Makes the folder of a log; how long the log is."""
    make_folder(path.parent, 0o700)
    with open_to_append(path, 0o600) as log:
        return os.fstat(log.fileno()).st_size


def _in_words(command: TrialCommand, code: int, words: LastWords) -> str:
    if words.signal is not None:
        return words.message or f"killed by {words.signal}"
    error = sound(JobDir(command.job_dir).status()).get("error")
    if error is not None and isinstance(error.get("message"), str) and words.message is None:
        return str(error["message"])
    return words.message or (words.lines[-1] if words.lines else f"exit code {code}")


def _settings(slot: Slot, driver: str, ranks: int) -> dict[str, str]:
    settings = {DRIVER_VARIABLE: driver, PROGRESS: "lines"}
    if not slot.is_bound:
        settings["OMP_NUM_THREADS"] = str(max(1, len(slot.cores) // ranks))
    if slot.node is not None:
        return {**settings, **WITHIN_A_STEP}
    if slot.devices:
        settings["CUDA_VISIBLE_DEVICES"] = ",".join(slot.devices)
    return settings


@contextmanager
def _bound_to(slot: Slot) -> Iterator[None]:
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


def end_orphans(drivers: Sequence[str]) -> int:
    """Has what dead `drivers` have left on this machine save and leave, and ends what does not; how many processes."""
    left = _of(drivers)
    if not left:
        return 0
    pids = {process.pid for process in left}
    roots = []
    for process in left:
        with suppress(psutil.Error):
            if process.ppid() not in pids:  # which looks after the others
                roots.append(process)
    deadline, asked = time.monotonic() + ENDING_SECS, 0.0
    while (still := _of(drivers)) and time.monotonic() < deadline:
        if time.monotonic() - asked > STOP_AGAIN_SECS:
            asked = time.monotonic()
            for process in roots:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGUSR1)
        time.sleep(POLL_SECS)
    kill(still)
    return len(left)


def remove_sessions(driver: str) -> None:
    """Removes the folders that the mpiruns of a dead driver have left on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SESSION_PREFIX}{driver}-*"):
        remove_tree(folder)


def _of(drivers: Sequence[str]) -> list[psutil.Process]:
    return [process for found in with_variable(DRIVER_VARIABLE, drivers).values() for process in found]
