"""Runs of trials on ranks of their own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from hpc_train.files import open_to_append
from hpc_train.folders import make_new_folder, remove_tree
from hpc_train.jobs.launch.error_excerpt import LastWords, RunOutput, last_words
from hpc_train.jobs.launch.launchers.open_mpi import SESSION_VARIABLE, SESSION_VARIABLES
from hpc_train.processes import kill, with_variable
from hpc_train.telemetry.status import SUPERVISOR_VARIABLE
from hpc_train.tuning.execution.orphans import session_folder
from hpc_train.tuning.execution.slots import Slot
from hpc_train.tuning.execution.trial_run import (
    DRIVER_VARIABLE,
    RankStarter,
    TrialCommand,
    TrialRun,
    begin_log,
    bound_to,
    code_in_truth,
    failure_in_words,
    rank_settings,
)

POLL_SECS = 0.05


class FreshRanks(RankStarter):
    """Starts ranks for each run, as `hpc-train launch` does."""

    def __init__(self, slot: Slot, driver: str) -> None:
        self._slot, self._driver = slot, driver

    def begin(self, command: TrialCommand) -> TrialRun:
        begin = begin_log(command.log)
        settings = rank_settings(self._slot, self._driver, command.ranks)
        session = session_folder(self._driver, secrets.token_hex(4))  # known also where the launcher is killed
        if self._slot.node is None and not SESSION_VARIABLES & os.environ.keys():
            make_new_folder(session, 0o700)
            settings[SESSION_VARIABLE] = str(session)
        with open_to_append(command.log, 0o600) as log, bound_to(self._slot):
            process = subprocess.Popen(
                [*self._slot.prefix, sys.executable, "-m", *command.words()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **settings},
            )
        return _LaunchedRun(command, process, begin, self._driver, session)


class _LaunchedRun(TrialRun):
    def __init__(
        self, command: TrialCommand, process: subprocess.Popen[bytes], begin: int, driver: str, session: Path
    ) -> None:
        self._command, self._process, self._begin, self._driver = command, process, begin, driver
        self._session, self._asked = session, False

    def code(self) -> int | None:
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            self._end_ranks()
        remove_tree(self._session)
        return code_in_truth(code, self._words()) if code >= 0 else 128 - code

    def _end_ranks(self) -> None:
        """Ends what a launcher that was killed has left: it would keep the trial's job-dir, and go on in it."""
        pid = str(self._process.pid)
        while left := [p for p in with_variable(SUPERVISOR_VARIABLE, [pid])[pid] if p in self._of_driver()]:
            kill(left)
            time.sleep(POLL_SECS)

    def _of_driver(self) -> list[psutil.Process]:
        return with_variable(DRIVER_VARIABLE, [self._driver])[self._driver]

    def _words(self) -> LastWords:
        return last_words(RunOutput(self._command.log, self._begin))

    def ask_to_stop(self) -> None:
        if not self._asked:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)

    def end_at_once(self) -> None:
        for _ in range(2):
            self._process.send_signal(signal.SIGINT)

    def failure(self, code: int) -> str:
        return failure_in_words(self._command, code, self._words())
