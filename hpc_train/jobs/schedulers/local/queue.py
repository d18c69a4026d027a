"""The queue of one machine's jobs: files in a folder, each locked by the process that looks after its job.

Jobs start in order, each once its cores are free; one that wants more than the machine has starts alone. There is no
server: each job has a runner (runner.py), which waits for its turn, and whose lock ends with it, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from hpc_train.distributed.affinity import cpus_of_a_job
from hpc_train.distributed.devices import open_gpus
from hpc_train.distributed.topology import TopologyError, read_topology
from hpc_train.errors import UserError
from hpc_train.files import create, open_to_change, open_to_lock, read_bytes
from hpc_train.folders import exposure, make_folder, remove, rename
from hpc_train.jobs.record.status import QueueState
from hpc_train.jobs.record.submission import Submission
from hpc_train.telemetry.json_files import write_json
from hpc_train.telemetry.status import LONGEST_TIME
from hpc_train.telemetry.units import counted

READ_AGAIN_SECS = 0.02
READ_TIMES = 10
"""A ticket is written in place, since its lock belongs to the file; a reader may meet half of one."""


MAX_TICKET_BYTES, MAX_NUMBER_BYTES = 1 << 16, 20
LARGEST_COUNT = 1 << 60
Count = Annotated[int, Field(ge=0, lt=LARGEST_COUNT)]
Time = Annotated[float, Field(ge=0, lt=LONGEST_TIME)]


@dataclass(frozen=True)
class Ticket:
    """A job's place in the queue.

    Attributes:
        number: The job's, for as long as it lives.
        position: Its place: jobs start in the order of their positions. One that is requeued gets a new one.
        cores, gpus: What it takes of the machine.
        pid: Of its runner.
        waits_for: The number of the job that has to succeed before; None once it has.
        started: When it was given its cores, seconds since 1970; None while it waits.
        limit: When its time is up.
        devices: The GPUs that it was given.
        cpus: The CPUs that it has for itself; none where there were not enough, or none are known.
    """

    number: Count
    position: Count
    job_dir: str
    cores: Count
    gpus: Count = 0
    pid: Count = 0
    requeues: Count = 0
    waits_for: str | None = None
    started: Time | None = None
    limit: Time | None = None
    devices: tuple[Count, ...] = ()
    cpus: tuple[Count, ...] = ()


_TICKET = TypeAdapter(Ticket)
_COUNT: TypeAdapter[int] = TypeAdapter(Count)


def queue_folder(env: Mapping[str, str], home: Path) -> Path:
    """Where this machine's queue is kept for this user: below XDG_STATE_HOME, which hosts may share."""
    given = Path(env.get("XDG_STATE_HOME", ""))  # a relative one is to be ignored, says the XDG Base Directory page
    state = given if given.is_absolute() else home / ".local/state"
    return state / "hpc_train" / socket.gethostname() / "queue"


class LocalQueue:
    """The jobs of one machine that wait or run.

    Args:
        folder: Where their tickets are; made for the first, for its owner alone.
        cores, gpus: Those that there are to give out.
    """

    def __init__(self, folder: Path, cores: int, gpus: int = 0) -> None:
        self.folder, self.cores, self.gpus = folder, cores, gpus

    @contextmanager
    def _locked(self) -> Iterator[None]:
        file = open_to_lock(self.folder / "lock")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _next(self) -> int:
        """A number that was never given out before: beyond the counter, which may be damaged, and all tickets."""
        counter = self.folder / "next.json"
        number = max([1, *(1 + max(ticket.number, ticket.position) for ticket in self._tickets())])
        with suppress(FileNotFoundError, ValueError):
            number = max(number, _COUNT.validate_json(read_bytes(counter, MAX_NUMBER_BYTES)))
        if number >= LARGEST_COUNT - 1:
            raise OSError(errno.ERANGE, f"no number is left after {number}", str(counter))
        write_json(counter, number + 1)
        return number

    def enter(self, job_dir: Path, cores: int, waits_for: str | None, gpus: int = 0) -> tuple[Ticket, int]:
        """A new job's ticket, and its file, open and locked, to be handed to its runner.

        Raises:
            UserError: The queue cannot be written.
        """
        try:
            make_folder(self.folder, 0o700)
            self._check_folder()
            with self._locked():
                number = self._next()
                ticket = Ticket(number, number, str(job_dir), min(cores, self.cores), gpus, waits_for=waits_for)
                return ticket, self._new_file(ticket)
        except OSError as error:
            raise self._unusable(f"cannot be kept there: {error.strerror}") from None

    def _new_file(self, ticket: Ticket) -> int:
        """The file of a new ticket, open and locked."""
        file = create(self._path(ticket), 0o600, readable=True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_ticket(file, ticket)
        except BaseException:
            remove(self._path(ticket), missing_ok=True)
            os.close(file)
            raise
        return file

    def _check_folder(self) -> None:
        """UserError where others may write in the folder: what its tickets say is signalled and killed."""
        if (by := exposure(self.folder)) is not None:
            raise self._unusable(f"{by}; chmod go-w it")

    def _unusable(self, why: str) -> UserError:
        return UserError(
            f"{self.folder}: the queue of this machine {why}; or set XDG_STATE_HOME to a folder of your own that can "
            "be written and has file locks"
        )

    def go_back(self, file: int, ticket: Ticket) -> Ticket:
        """The ticket of a job that goes back to the end of the queue. Its file gets the new position's name."""
        with self._locked():
            position, requeues = self._next(), ticket.requeues + 1
            moved = replace(ticket, position=position, requeues=requeues, started=None, limit=None, devices=(), cpus=())
            write_ticket(file, moved)
            rename(self._path(ticket), self._path(moved))
        return moved

    def try_start(self, file: int, ticket: Ticket, time_secs: float | None, mask: Collection[int] = ()) -> Ticket:
        """The ticket with `started`, if it is the job's turn now; else as it is. Its CPUs are of those in `mask`."""
        with self._locked():
            now, others = time.time(), self._tickets()
            if not may_start(ticket, others, self.cores, self.gpus):
                return ticket
            devices = free_devices(others, self.gpus)[: ticket.gpus]
            limit = None if time_secs is None else now + time_secs
            taken = [cpu for other in others for cpu in other.cpus]
            cpus = _own_cpus(ticket.cores, mask, taken, devices, random.SystemRandom().getrandbits(16))
            started = replace(ticket, started=now, limit=limit, devices=tuple(devices), cpus=cpus)
            write_ticket(file, started)
        return started

    def leave(self, file: int, ticket: Ticket) -> None:
        """Takes the job out of the queue."""
        with self._locked():
            remove(self._path(ticket), missing_ok=True)
            os.close(file)

    def tickets(self) -> list[Ticket]:
        """The jobs that wait or run, in their order. Tickets that dead runners have left are removed."""
        if not self.folder.is_dir():
            return []
        self._check_folder()
        try:
            with self._locked():  # a ticket may just be made, or moved
                return self._tickets()
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from None

    def job_dir_of(self, number: str) -> Path | None:
        """That of a job in the queue."""
        return next((Path(ticket.job_dir) for ticket in self.tickets() if str(ticket.number) == number), None)

    def _tickets(self) -> list[Ticket]:
        found = []
        for path in sorted(self.folder.glob("ticket-*.json")):
            with suppress(OSError, ValueError):  # what is no ticket is passed over
                file = open_to_change(path)
                try:
                    if _is_free(file):
                        remove(path)
                    elif ticket := _read_ticket(path):
                        found.append(ticket)
                finally:
                    os.close(file)
        return sorted(found, key=lambda ticket: ticket.position)

    def _path(self, ticket: Ticket) -> Path:
        return self.folder / f"ticket-{ticket.position:08d}.json"

    def seen(self, submission: Submission, host: str) -> QueueState:
        """What the queue knows of a submitted job; `host` is this machine's name."""
        if submission.host != host:
            note = f"it is in the queue of {submission.host}, which cannot be asked from {host}"
            return QueueState("unasked", note=note)
        tickets = self.tickets()
        ticket = next((ticket for ticket in tickets if str(ticket.number) == submission.job_id), None)
        if ticket is None or ticket.job_dir == "":
            return QueueState("forgotten")
        if ticket.started is None:
            why = why_waiting(ticket, tickets, self.cores, self.gpus) or "it is its turn"
            return QueueState("waiting", why, ticket.requeues, where=host)
        return QueueState("running", None, ticket.requeues, ticket.started, ticket.limit, where=host)


def may_start(ticket: Ticket, tickets: Sequence[Ticket], cores: int, gpus: int = 0) -> bool:
    """Whether it is this job's turn: none before it waits, and its cores and GPUs are free. Pure."""
    return why_waiting(ticket, tickets, cores, gpus) is None


def _own_cpus(
    wanted: int, mask: Collection[int], taken: Collection[int], devices: Sequence[int], turn: int
) -> tuple[int, ...]:
    """CPUs for one job alone: see cpus_of_a_job. Those with the lowest numbers where the machine does not tell more."""
    try:
        return cpus_of_a_job(wanted, mask, taken, read_topology(mask, open_gpus() if devices else ()), devices, turn)
    except TopologyError:
        free = sorted({*mask}.difference(taken))
        return tuple(free[:wanted]) if len(free) >= wanted else ()


def free_devices(tickets: Sequence[Ticket], gpus: int) -> list[int]:
    """The GPUs that no job has. Pure."""
    taken = {device for ticket in tickets for device in ticket.devices}
    return [device for device in range(gpus) if device not in taken]


def why_waiting(ticket: Ticket, tickets: Sequence[Ticket], cores: int, gpus: int = 0) -> str | None:
    """What a job waits for, in words; None: it is its turn. Pure."""
    if ticket.waits_for is not None:
        return f"Dependency (job {ticket.waits_for})"
    before = [t for t in tickets if t.position < ticket.position and t.started is None and t.waits_for is None]
    if before:
        return f"Priority ({counted(len(before), 'job')} before it)"
    if ticket.gpus > (left := len(free_devices(tickets, gpus))):
        return f"Resources ({counted(ticket.gpus, 'GPU')} wanted, {left} of {gpus} free)"
    if ticket.cores > (free := cores - sum(t.cores for t in tickets if t.started is not None)):
        return f"Resources ({counted(ticket.cores, 'core')} wanted, {free} of {cores} free)"
    return None


def write_ticket(file: int, ticket: Ticket) -> None:
    """Writes it into its open file, whose lock stays."""
    text = json.dumps(asdict(ticket)).encode()
    os.pwrite(file, text, 0)
    os.ftruncate(file, len(text))


def read_ticket(file: int) -> Ticket:
    """The ticket in an open file."""
    return _ticket_in(os.pread(file, MAX_TICKET_BYTES, 0))


def _ticket_in(text: bytes) -> Ticket:
    """ValueError where it is none."""
    return _TICKET.validate_json(text)


def _read_ticket(path: Path) -> Ticket | None:
    for _ in range(READ_TIMES):
        with suppress(ValueError):
            return _ticket_in(read_bytes(path, MAX_TICKET_BYTES))
        time.sleep(READ_AGAIN_SECS)
    return None


def _is_free(file: int) -> bool:
    """Whether nobody holds the lock of an open file."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
