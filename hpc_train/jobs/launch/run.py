"""Runs the ranks of a job by a launcher, and again after a crash."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_train import stdio
from hpc_train.config.secrets import masked_words
from hpc_train.jobs.launch.launcher_output import pump
from hpc_train.jobs.launch.launchers.base import Launcher
from hpc_train.jobs.launch.launchers.start import Start, start_of
from hpc_train.jobs.launch.rank_hosts import RankHosts
from hpc_train.jobs.launch.record_end import newest_step
from hpc_train.jobs.launch.supervisor import RunEnd, supervise
from hpc_train.outcome import EXIT_AT_ONCE, EXIT_FAILED, EXIT_STOPPED, STOP_CODES
from hpc_train.processes import kill, of_session
from hpc_train.resilience.signals import StopSignals
from hpc_train.telemetry.start_timeline import LAUNCHED_VARIABLE, process_began
from hpc_train.telemetry.status import (
    COMMAND_VARIABLE,
    OUTPUT_VARIABLE,
    RESTART_REASON_VARIABLE,
    RESTARTS_VARIABLE,
    SUPERVISOR_VARIABLE,
    mark_ended,
    read_status,
)
from hpc_train.text import visible

log = logging.getLogger(__name__)

POLL_SECS = 0.1
STOP_AGAIN_SECS, STOP_TIMES = 2.0, 5
"""How often, and how many times, ranks are asked to stop: a launcher loses what comes before it has started them."""
KILL_SECS = 10.0
"""How long a launcher may take to end the ranks at a second Ctrl-C (mpirun needs one to three seconds)."""
LEFT_OVER_SECS = 1.0
"""How long what a launcher has started may outlive it."""
EXIT_LAUNCHER_ENDED = 128 + signal.SIGTERM
"""Of a run whose launcher was told to end, which it does with EXIT_FAILED, as if a rank had failed; none has."""
ASKED = {"SIGINT": "Ctrl-C: the ranks save and stop; a second Ctrl-C ends them at once"}
PROGRESS = "HPC_TRAIN_PROGRESS"
NO_START = (
    "Open MPI could not start on a host, as it says above: its folder there (TMPDIR, or /tmp) has to exist, with room, "
    "and to be writable"
)
SHOW_CURSOR = "\x1b[?25h"
"""A bar hides the cursor; that of a rank that was killed leaves it so, and its line open."""


def launch(
    launcher: Launcher,
    ranks: int,
    job_file: Path,
    job_dir: Path,
    max_restarts: int = 0,
    more: Sequence[str] = (),
    hosts: RankHosts | None = None,
) -> int:
    """Runs `hpc-train train` on `ranks` ranks, after crashes up to `max_restarts` times again; the last exit code.

    `more` are options for it. With `hosts` the ranks are those of the hosts, and after a crash of those that answer.

    The signals that stop a job, Ctrl-C among them, go to the ranks as SIGUSR1: launchers hand that one on, while others
    would make them kill the ranks within a second or two. A second Ctrl-C does just that. Where a rank is killed, or
    leaves without reporting, it is named, and status.json in `job_dir` says so.
    """
    program = [sys.executable, "-m", "hpc_train", "train", str(job_file), "--job-dir", str(job_dir), *more]
    progress = (
        {} if PROGRESS in os.environ else {PROGRESS: "bar" if launcher.draws and sys.stdout.isatty() else "lines"}
    )
    command = shlex.join(["hpc-train", *masked_words(sys.argv[1:])])
    known = {COMMAND_VARIABLE: command, SUPERVISOR_VARIABLE: str(os.getpid())}
    if (output := stdio.output_file()) is not None:
        known[OUTPUT_VARIABLE] = output
    settings = {**progress, **known}
    if hosts is not None:
        settings["SLURM_OVERLAP"] = "1"  # in an allocation mpirun's helpers do not wait for a step on a dead node
    start = (
        start_of(launcher, ranks, program, settings)
        if hosts is None
        else HostStarts(launcher, program, settings, hosts)
    )
    at_once = threading.Event()
    with StopSignals(at_once.set) as signals:
        return run_supervised(start, job_dir, max_restarts, signals, at_once, process_began())


@dataclass(frozen=True)
class HostStarts:
    """How the ranks are started on hosts that change from run to run."""

    launcher: Launcher
    program: Sequence[str]
    more: Mapping[str, str]
    hosts: RankHosts

    def next(self, settings: Mapping[str, str]) -> Start:
        """On the hosts as they are now, with `settings` for the ranks as well."""
        more = {**self.more, **settings, RESTART_REASON_VARIABLE: self.hosts.reason}
        return start_of(self.launcher, self.hosts.ranks, self.program, more, hosts=self.hosts.hosts)


def run_supervised(
    start: Start | HostStarts,
    job_dir: Path,
    max_restarts: int,
    signals: StopSignals,
    at_once: threading.Event,
    began: float | None = None,
) -> int:
    """Runs the ranks, after crashes up to `max_restarts` times again, and returns the last exit code.

    Args:
        signals: What asks them to stop.
        at_once: Ends them without asking.
        began: When the launch has begun, in seconds since 1970; None: now.
    """
    given = os.environ.get(RESTARTS_VARIABLE, "")
    earlier = int(given) if given.isdecimal() else 0

    def run(restarts: int) -> RunEnd:
        launched = time.time() if began is None or restarts else began
        counted = {RESTARTS_VARIABLE: str(earlier + restarts), LAUNCHED_VARIABLE: f"{launched:.3f}"}
        now = start.next(counted) if isinstance(start, HostStarts) else start
        with now.launcher.session() as session:
            settings = {**now.settings, **session, **counted}
            return _run(replace(now, settings=settings), job_dir, signals, at_once)

    def wait(secs: float) -> bool:
        end = time.monotonic() + secs
        while signals.received is None and time.monotonic() < end:
            time.sleep(POLL_SECS)
        return signals.received is None

    def ask() -> str | None:
        return start.hosts.ask(lambda: signals.received is not None) if isinstance(start, HostStarts) else None

    return supervise(run, lambda: newest_step(job_dir), max_restarts, wait, report, ask)


def _run(start: Start, job_dir: Path, signals: StopSignals, at_once: threading.Event) -> RunEnd:
    """Runs all ranks to their end, and leaves no process behind."""
    before = _run_in(read_status(job_dir))
    read_end, write_end = os.pipe()
    output = start.launcher.output()
    # A session of its own keeps the terminal's Ctrl-C from the launcher.
    process = subprocess.Popen(
        start.command,
        env={**os.environ, **start.settings},
        cwd=start.cwd,
        stdin=subprocess.DEVNULL,
        stderr=write_end,
        start_new_session=True,
    )
    os.close(write_end)
    writer = threading.Thread(target=pump, args=(read_end, output, sys.stderr.fileno()), daemon=True)
    writer.start()
    asked = killed = 0.0
    gave_up = False
    times = 0
    while not has_ended(process.pid):
        now = time.monotonic()
        if output.cannot_start and not at_once.is_set():
            gave_up = True
            at_once.set()
        elif at_once.is_set():
            if not killed:
                killed = now
                process.terminate()
            elif now - killed > KILL_SECS:
                process.kill()
        elif signals.received is not None and times < STOP_TIMES and now - asked > STOP_AGAIN_SECS:
            if not times:
                report(ASKED.get(signals.received, f"{signals.received}: the ranks save and stop"))
            asked, times = now, times + 1
            process.send_signal(signal.SIGUSR1)
        time.sleep(POLL_SECS)
    end_session(process.pid)
    code = process.wait()
    code = 128 - code if code < 0 else code
    writer.join(LEFT_OVER_SECS)
    code = output.settle(code)
    status, end, rank = read_status(job_dir), output.end, output.end.rank if output.end else None
    fresh = _run_in(status) != before or bool(status.get("program"))  # that of a program was written before it started
    reported = output.reported or (fresh and status.get("state") != "running")
    if gave_up:
        at_once.clear()
        code, why, reported = EXIT_FAILED, NO_START, False
        end = rank = None
    elif killed:
        code, why, reported = EXIT_AT_ONCE, "interrupted twice: ended at once; what was saved before stays", False
        end = rank = None
    elif times and signals.received and code == EXIT_STOPPED:
        code, why, reported = STOP_CODES[signals.received], "stopped", True
    elif times and signals.received and code == 128 + signal.SIGUSR1:
        code, why, reported = STOP_CODES[signals.received], "stopped before the ranks had begun", False
    elif end is not None and (end.signal is not None or not reported):
        why, reported = str(end), False
    elif fresh and not reported and code == EXIT_FAILED:
        code, why = EXIT_LAUNCHER_ENDED, f"{start.launcher.name} was ended by a signal"
    else:
        why, end = f"the job ended with exit code {code}", None
    if (killed or (end is not None and end.signal is not None)) and sys.stdout.isatty():
        print(SHOW_CURSOR, flush=True)
    if code != 0 and fresh:
        mark_ended(job_dir, rank, end.signal_name if end else None, why)
    return RunEnd(code, why, reported or code == 0)


def has_ended(pid: int) -> bool:
    """Whether the child has; it keeps its number until it is waited for, and so does its session."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def end_session(leader: int) -> None:
    """Ends what is left of the session of `leader`, which has ended: ranks that lost their launcher, their children."""
    grace = time.monotonic() + LEFT_OVER_SECS
    while left := of_session(leader):
        if time.monotonic() > grace:
            kill(left)
            return
        time.sleep(POLL_SECS / 2)


def _run_in(status: dict[str, Any]) -> tuple[Any, ...]:
    """Which run has written `status`."""
    return tuple(status.get(name) for name in ("host", "pid", "started"))


def report(text: str) -> None:
    """Prints a line for the user."""
    print(f"hpc-train: {visible(text)}", file=sys.stderr, flush=True)
