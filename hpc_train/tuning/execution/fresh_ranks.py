"""Runs of trials on ranks of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from hpc_train.files import open_to_append
from hpc_train.jobs.launch.error_excerpt import LastWords, RunOutput, last_words
from hpc_train.processes import kill, with_variable
from hpc_train.telemetry.status import SUPERVISOR_VARIABLE
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
        with open_to_append(command.log, 0o600) as log, bound_to(self._slot):
            process = subprocess.Popen(
                [*self._slot.prefix, sys.executable, "-m", *command.words()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **rank_settings(self._slot, self._driver, command.ranks)},
            )
        return _LaunchedRun(command, process, begin, self._driver)


class _LaunchedRun(TrialRun):
    def __init__(self, command: TrialCommand, process: subprocess.Popen[bytes], begin: int, driver: str) -> None:
        self._command, self._process, self._begin, self._driver = command, process, begin, driver
        self._asked = False

    def code(self) -> int | None:
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            self._end_ranks()
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
