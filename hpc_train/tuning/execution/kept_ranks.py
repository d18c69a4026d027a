"""Runs of trials on ranks that a slot keeps."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from hpc_train.distributed.world import Threads
from hpc_train.files import open_to_append
from hpc_train.folders import make_folder, make_new_folder, remove_tree
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobs.launch.error_excerpt import LastWords, RunOutput, last_words
from hpc_train.jobs.launch.launchers.mpirun import Mpirun
from hpc_train.jobs.launch.launchers.open_mpi import SESSION_VARIABLE, SESSION_VARIABLES
from hpc_train.jobs.launch.launchers.start import start_of
from hpc_train.jobs.launch.run import end_session
from hpc_train.outcome import EXIT_AT_ONCE, EXIT_FAILED, EXIT_LOST_NODE, STOP_CODES
from hpc_train.telemetry.status import mark_ended, sound
from hpc_train.tuning.execution.assignments import Assignment, AssignmentFolder, ModelFacts
from hpc_train.tuning.execution.orphans import session_folder
from hpc_train.tuning.execution.slots import Slot
from hpc_train.tuning.execution.trial_run import (
    RankStarter,
    TrialCommand,
    TrialRun,
    begin_log,
    bound_to,
    code_in_truth,
    failure_in_words,
    rank_settings,
)

STOP_AGAIN_SECS, STOP_TIMES = 2.0, 15
"""How often, and how many times, ranks are asked to stop: mpirun loses what comes before it has started them."""
BEGIN_SECS, SILENT_SECS = 600.0, 60.0
"""How long ranks may take to come up, and be silent: they report each second, by a thread of their own."""
LEAVING_SECS = 10.0
"""How long ranks that have nothing to do may take to leave."""


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
        return self._begun(command, only_facts=False)

    def facts(self, command: TrialCommand) -> KeptRun:
        """Begins to find out what the model of a job is like, without training it."""
        return self._begun(command, only_facts=True)

    def _begun(self, command: TrialCommand, only_facts: bool) -> KeptRun:
        begin = begin_log(command.log)
        if self._started is None or self._started.has_left():
            self._started = self._start()
        return self._started.begin(command, begin, only_facts)

    def _start(self) -> _Ranks:
        self._close()
        folder = self._folder / str(self._starts)
        self._starts += 1
        make_folder(folder, 0o700)
        program = [sys.executable, "-m", "hpc_train.tuning.execution.ranks", str(folder), self._threads]
        settings = rank_settings(self._slot, self._driver, self._ranks)
        own = session_folder(self._driver, secrets.token_hex(4))
        make_new_folder(own, 0o700)
        if not SESSION_VARIABLES & os.environ.keys():
            settings[SESSION_VARIABLE] = str(own)
        start = start_of(self._mpirun, self._ranks, program, settings)
        log = folder / "mpirun.log"
        with open_to_append(log, 0o600) as output, bound_to(self._slot):
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

    def begin(self, command: TrialCommand, begin: int, only_facts: bool) -> KeptRun:
        """Gives them their next run; `begin` is how long its log is."""
        number, self._given, self._heard = self._given, self._given + 1, time.monotonic()
        run = KeptRun(self, number, command, begin)
        files = (str(command.job_file), str(command.data_root), str(command.job_dir), str(command.log))
        self.assignments.assign(number, Assignment(*files, tuple(command.settings), time.time(), only_facts))
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
        self._code: int | None = None

    def code(self) -> int | None:
        if (end := self._ranks.assignments.end(self._number)) is not None:
            return end.code
        if self._code is None and (code := self._ranks.code()) is not None:
            self._code = self._ended(EXIT_AT_ONCE if self._at_once else code or EXIT_FAILED)
        if self._code is not None:
            return self._code
        if self._asked and time.monotonic() - self._asked > STOP_AGAIN_SECS and self._times < STOP_TIMES:
            self._ask()
        return None

    def _ended(self, code: int) -> int:
        """The exit code, where mpirun has ended with `code` and no rank has reported; status.json says so then, too."""
        notice, printed = self._words()
        code = code_in_truth(code, notice, printed)
        if sound(JobDir(self._command.job_dir).status()).get("state") == "running":
            mark_ended(self._command.job_dir, notice.rank, notice.signal, self.failure(code))
        return code

    def _words(self) -> tuple[LastWords, LastWords]:
        """What mpirun has said of the ranks, and what they have printed."""
        return last_words(RunOutput(self._ranks.log)), last_words(RunOutput(self._command.log, self._begin))

    def facts(self) -> ModelFacts:
        """What was to be found out, once it has ended."""
        end = self._ranks.assignments.end(self._number)
        return end.facts if end is not None else ModelFacts()

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
        notice, printed = self._words()
        return failure_in_words(self._command, code, notice if notice.signal is not None else printed)


def _stays(code: int) -> bool:
    """Whether kept ranks wait for another trial after one that has ended with `code`."""
    return code in (0, *STOP_CODES.values())
