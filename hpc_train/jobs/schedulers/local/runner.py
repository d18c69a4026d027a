"""The runner of one job in this machine's queue: waits for its turn, starts its ranks, and lets it go back.

It has the same ends as slurm/ranks.sh: SIGUSR1, and the time limit, have the ranks save and put the job back into the
queue; SIGTERM has them save and ends it; a second SIGINT ends it at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import psutil

from hpc_train.distributed.binding import BIND_VARIABLE, MACHINE_CPUS_VARIABLE, OWN_CPUS_VARIABLE, cpus_of_the_queue
from hpc_train.distributed.topology import cpu_text
from hpc_train.errors import UserError
from hpc_train.files import open_to_append
from hpc_train.jobdir.paths import CODE, LOG_FILE, PACKAGES, SECRETS_FILE
from hpc_train.jobs.containers.job import of_submission
from hpc_train.jobs.containers.start import CONTAINER_VARIABLE, contained_command
from hpc_train.jobs.launch.error_excerpt import RunOutput
from hpc_train.jobs.launch.installation_check import refusal
from hpc_train.jobs.launch.launchers.mpirun import Mpirun
from hpc_train.jobs.launch.launchers.start import Start, start_of
from hpc_train.jobs.launch.record_end import record_begin, record_end
from hpc_train.jobs.launch.run import PROGRESS, report, run_supervised
from hpc_train.jobs.record.submission import Submission, cancelled_by, job_command, note_cancelled, read_submission
from hpc_train.jobs.schedulers.local.queue import LocalQueue, Ticket, read_ticket, write_ticket
from hpc_train.jobs.schedulers.query import query
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_TERMINATED, STOP_CODES, is_requeued
from hpc_train.processes import kill, with_variable
from hpc_train.resilience.guard import ALLOWED
from hpc_train.resilience.signals import StopSignals
from hpc_train.telemetry.environment import MASKED_VARIABLE
from hpc_train.telemetry.status import JOB_VARIABLE, REQUEUES_VARIABLE
from hpc_train.telemetry.units import counted

POLL_SECS = 0.3
TOKEN_VARIABLE = "HPC_TRAIN_SUBMISSION"
"""Set for all that a runner starts, which is so found where its runner was killed."""
KILL_AFTER_SECS = 20.0
PYTHONPATH = "PYTHONPATH"


def start_runner(job_dir: Path, submission: Submission, queue: LocalQueue) -> Submission:
    """Puts a job into the queue, starts its runner in a session of its own, and returns it with its number.

    The runner outlives this process and its terminal; what it and the ranks print is appended to LOG_FILE.
    """
    wants = submission.wants
    ticket, file = queue.enter(
        job_dir, wants.ranks * wants.cores_per_rank, submission.after, wants.nodes * wants.gpus_per_node
    )
    numbered = submission.with_id(str(ticket.number))
    try:
        numbered.save(job_dir)
        with open_to_append(job_dir / LOG_FILE, 0o600) as log:
            subprocess.Popen(
                [python_of(submission), "-m", __package__, str(job_dir), str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[file],
                start_new_session=True,
                cwd=job_dir,
                env={**os.environ, **_import_path(job_dir, submission, {}), TOKEN_VARIABLE: submission.token},
            )
        os.close(file)
    except BaseException as error:
        with suppress(OSError):
            queue.leave(file, ticket)
        if isinstance(error, OSError):
            raise UserError(f"{error.filename or job_dir}: cannot be written: {error.strerror}") from None
        raise
    return numbered


@dataclass
class _Limit:
    """The time limit of one run: warns the ranks before it, and cuts them off at it. A context manager.

    Ends the ranks, too, where somebody has removed their job-dir.
    """

    ends: float | None
    warns_secs: int
    at_once: threading.Event
    job_dir: Path
    was_cut: bool = False
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> _Limit:
        threading.Thread(target=self._watch, name="time limit", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def _watch(self) -> None:
        warned = False
        while not self._done.wait(POLL_SECS):
            if not self.job_dir.is_dir():
                report("the job-dir is gone: the ranks are ended")
                self.at_once.set()
                return
            if self.ends is not None and not warned and time.time() >= self.ends - self.warns_secs:
                warned = True
                report("the time limit comes near: the ranks are asked to save")
                os.kill(os.getpid(), signal.SIGUSR1)
            if self.ends is not None and time.time() >= self.ends:
                self.was_cut = True
                self.at_once.set()
                return


def run_queued(job_dir: Path, file: int, queue: LocalQueue) -> int:
    """Looks after the job in `job_dir` until it has ended, and returns its exit code. `file` holds its ticket."""
    os.set_inheritable(file, False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with suppress(OSError):  # a job that has submitted this one may run on some of them alone
        os.sched_setaffinity(0, cpus_of_the_queue(os.environ))
    ticket, submission = replace(read_ticket(file), pid=os.getpid()), read_submission(job_dir)
    assert submission is not None, "written before its runner is started"
    write_ticket(file, ticket)
    os.environ[JOB_VARIABLE] = str(ticket.number)
    try:
        with StopSignals() as waiting:
            while True:
                ticket = _wait_for_turn(queue, file, ticket, submission, waiting)
                if ticket.started is None:
                    return _leave_unstarted(job_dir, submission)
                os.environ[REQUEUES_VARIABLE] = str(ticket.requeues)
                code, back = _run_once(job_dir, submission, ticket)
                if not back or waiting.received not in (None, "SIGUSR1"):
                    return code
                waiting.received = None
                ticket = queue.go_back(file, ticket)
                report("the job is back in the queue")
    finally:
        queue.leave(file, ticket)


def _wait_for_turn(
    queue: LocalQueue, file: int, ticket: Ticket, submission: Submission, signals: StopSignals
) -> Ticket:
    """The ticket, `started` unless somebody has cancelled the job or what it waits for has not succeeded."""
    job_dir, mask = Path(ticket.job_dir), os.sched_getaffinity(0)
    while signals.received in (None, "SIGUSR1") and job_dir.is_dir() and cancelled_by(job_dir, submission) is None:
        if ticket.waits_for is not None and submission.after_dir is not None:
            (before,) = query([Path(submission.after_dir)])
            if before.state == "SUCCEEDED":
                ticket = replace(ticket, waits_for=None)
                write_ticket(file, ticket)
            elif before.has_ended:
                note_cancelled(job_dir, submission.token, f"job {ticket.waits_for}, which it follows: {before.state}")
                return ticket
        with suppress(OSError):  # a file system that is gone for a while
            ticket = queue.try_start(file, ticket, submission.wants.time_secs, mask)
        if ticket.started is not None:
            break
        time.sleep(POLL_SECS)
    # Asked after the start, since whoever cancels notes it first.
    if not job_dir.is_dir() or cancelled_by(job_dir, submission) is not None:
        return replace(ticket, started=None)
    return ticket


def _leave_unstarted(job_dir: Path, submission: Submission) -> int:
    by = cancelled_by(job_dir, submission)
    if by is None and job_dir.is_dir():
        note_cancelled(job_dir, submission.token, "a signal")
    report(f"cancelled before it had started ({by or 'a signal'})")
    return EXIT_TERMINATED


def _run_once(job_dir: Path, submission: Submission, ticket: Ticket) -> tuple[int, bool]:
    """Runs the ranks; their exit code, and whether the job is to go back into the queue."""
    wants, run = submission.wants, ticket.requeues
    started = datetime.now().astimezone().isoformat(" ", "seconds")
    report(f"{started}: job {ticket.number} starts, {counted(wants.ranks, 'rank')}")
    program, rank_logs = submission.kind == "program", _free_folder(job_dir, run)
    if lost := submission.lost_secrets:
        report(f"the values of {', '.join(lost)} cannot be read in {job_dir / SECRETS_FILE}: submit the job again")
        return record_end(job_dir, EXIT_BAD_INPUT, None, submission.token, program) or EXIT_BAD_INPUT, False
    if (why := refusal(submission, job_dir)) is not None:
        report(why)
        return record_end(job_dir, EXIT_BAD_INPUT, None, submission.token, program) or EXIT_BAD_INPUT, False
    printed = RunOutput(job_dir / LOG_FILE, (job_dir / LOG_FILE).stat().st_size, rank_logs)
    if program:
        record_begin(job_dir, submission.token, wants.ranks, os.getpid())
    at_once = threading.Event()
    with StopSignals(at_once.set) as signals, _Limit(ticket.limit, wants.warns_secs, at_once, job_dir) as limit:
        try:
            inside = _inside(submission, job_dir)
        except UserError as error:
            report(str(error))
            return record_end(job_dir, EXIT_BAD_INPUT, None, submission.token, program) or EXIT_BAD_INPUT, False
        if signals.received is not None and wants.container is not None:
            code = STOP_CODES[signals.received]
        else:
            start = start_of_job(job_dir, submission, rank_logs, ticket.devices, ticket.cpus, inside)
            with _bound(ticket.cpus):
                code = run_supervised(start, job_dir, 0, signals, at_once)
        received = signals.received
    cancelled = cancelled_by(job_dir, submission) is not None
    back = is_requeued(code, received == "SIGUSR1", limit.was_cut) and not cancelled
    if limit.was_cut and back:
        report("the time limit has come before the ranks had saved; the job goes on from its last checkpoint")
    refused = record_end(job_dir, code, "warning" if back else None, submission.token, program, printed)
    return (refused or code), back and refused == 0


def _inside(submission: Submission, job_dir: Path) -> list[str]:
    """What comes before each rank's command, of a job in a container; nothing of others.

    Raises:
        UserError: The ranks cannot run in it.
    """
    os.environ.pop(CONTAINER_VARIABLE, None)
    if submission.wants.container is None:
        return []
    if not Path(os.environ.get("TMPDIR", "/tmp")).is_relative_to("/tmp"):  # where mpirun and the ranks meet
        tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"
    job = of_submission(submission, job_dir)
    if job.mpirun is not None:
        job = replace(job, mpirun=Mpirun().path)
    return contained_command(job, {**os.environ, **submission.wants.environment}, report)


def _free_folder(job_dir: Path, run: int) -> Path:
    """Where the ranks' output of this run is kept: run-0, run-1 …, counted on where the job was resumed."""
    while (folder := job_dir / f"logs/run-{run}").exists():
        run += 1
    return folder


@contextmanager
def _bound(cpus: Collection[int]) -> Iterator[None]:
    """What this thread starts meanwhile runs on `cpus` alone, where there are any, and the kernel allows it."""
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, cpus or before)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def start_of_job(
    job_dir: Path,
    submission: Submission,
    rank_logs: Path,
    devices: Sequence[int] = (),
    cpus: Collection[int] = (),
    inside: Sequence[str] = (),
) -> Start:
    """How the ranks of a job are started on this machine; `rank_logs` gets their output.

    Args:
        devices: Their GPUs. cpus: those that the job has for itself, which the ranks are told.
        inside: What comes before each rank's command, of a job in a container.
    """
    wants, code = submission.wants, job_dir / CODE
    more = {
        **{name: value for name, value in submission.variables.items() if name not in os.environ},
        "OMP_NUM_THREADS": str(wants.cores_per_rank),
        "PYTHONUNBUFFERED": "1",
        PROGRESS: "lines",
        MASKED_VARIABLE: " ".join(wants.environment),
        **wants.environment,
        **_import_path(job_dir, submission, wants.environment),
        BIND_VARIABLE: wants.bind,
    }
    if cpus or OWN_CPUS_VARIABLE in os.environ:  # that of a job which has submitted this one
        more[OWN_CPUS_VARIABLE] = cpu_text(cpus)
        more[MACHINE_CPUS_VARIABLE] = cpu_text(cpus_of_the_queue(os.environ))
    if wants.requirements is not None:
        beside = more.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        more["PYTHONPATH"] = os.pathsep.join(filter(None, (str(job_dir / PACKAGES), beside)))
    if submission.survives:
        more[ALLOWED] = "1"
    if devices:
        more["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    python = "python3" if inside else python_of(submission)
    command = [*inside, python, *job_command(job_dir, submission)]
    if submission.kind == "program" and wants.ranks == 1:
        return Start(tuple(command), more, code)
    return start_of(Mpirun(), wants.ranks, command, more, rank_logs, code)


def python_of(submission: Submission) -> str:
    """The interpreter that runs a job: the one that it was submitted with."""
    return sys.executable if submission.installation is None else submission.installation.python


def _import_path(job_dir: Path, submission: Submission, environment: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH with the copy of hpc_train that the job runs first, where it has one."""
    folder = None if submission.installation is None else submission.installation.path(job_dir)
    if folder is None:
        return {}
    before = environment.get(PYTHONPATH, os.environ.get(PYTHONPATH))
    return {PYTHONPATH: os.pathsep.join(filter(None, [str(folder), before]))}


def stop(ticket: Ticket, token: str, save: bool) -> bool:
    """Ends a job: with `save` the ranks save first, else at once, with all of its processes. Whether it has ended.

    With `save`, does not wait for that.
    """
    if save:
        _signal_runner(ticket, processes_of(token), signal.SIGTERM)
        return False
    deadline = time.monotonic() + KILL_AFTER_SECS
    while (left := processes_of(token)) and time.monotonic() < deadline:
        _signal_runner(ticket, left, signal.SIGINT)  # the second one ends it at once
        time.sleep(POLL_SECS)
    return kill_all(token)


def _signal_runner(ticket: Ticket, processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        if process.pid == ticket.pid:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def kill_all(token: str) -> bool:
    """Kills what is left of a submission's processes. Whether all have gone."""
    deadline = time.monotonic() + KILL_AFTER_SECS
    while (left := processes_of(token)) and time.monotonic() < deadline:
        kill(left)
        time.sleep(POLL_SECS)
    return not left


def processes_of(token: str) -> list[psutil.Process]:
    """The processes that a submission's runner has started, and itself: they have its token in their environment."""
    return with_variable(TOKEN_VARIABLE, [token])[token]
