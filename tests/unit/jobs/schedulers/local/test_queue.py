"""The queue of one machine's jobs: whose turn it is, and what becomes of tickets whose runner has died."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.resources import Resources
from hpc_train.jobs.record.status import QueueState
from hpc_train.jobs.record.submission import Submission
from hpc_train.jobs.schedulers.local.queue import (
    LocalQueue,
    Ticket,
    may_start,
    queue_folder,
    read_ticket,
    why_waiting,
    write_ticket,
)
from tests.support import LIMIT_SECS

CORES = 4


@pytest.fixture
def queue(tmp_path: Path) -> LocalQueue:
    return LocalQueue(tmp_path / "state/queue", CORES)


def submission(job_id: str | None, host: str = "here") -> Submission:
    return Submission(
        token="t0",
        name="a",
        kind="model",
        backend="local",
        submitted=1e9,
        user="me",
        host=host,
        job_file="/home/me/job.yaml",
        entry="job.yaml",
        settings=(),
        resources=Resources(tier="BASIC").model_dump(mode="json"),
        code={},
        version="0.1",
        job_id=job_id,
    )


def enter(queue: LocalQueue, cores: int = 1, waits_for: str | None = None) -> tuple[Ticket, int]:
    return queue.enter(Path("/runs/a"), cores, waits_for)


@contextmanager
def another_process(work: Callable[[], Any]) -> Iterator[int]:
    """Forks one that works on; its pid. It exits with 1 where `work` raises, and is killed where it still runs."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    try:
        yield pid
    finally:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# ---- whose turn it is

waiting_tickets = st.lists(
    st.builds(
        Ticket,
        number=st.just(0),
        position=st.just(0),
        job_dir=st.just("/runs/a"),
        cores=st.integers(1, CORES),
        waits_for=st.sampled_from([None, None, "77"]),
    ),
    min_size=1,
    max_size=6,
).map(lambda tickets: [replace(ticket, number=n + 5, position=n + 5) for n, ticket in enumerate(tickets)])


@given(waiting_tickets, st.data())
def test_jobs_start_in_order_on_cores_that_are_free(tickets: list[Ticket], data: st.DataObject) -> None:
    """Whoever asks, and whenever: jobs start and end, and their predecessors succeed, in any order."""
    order: list[int] = []
    for _ in range(4 * len(tickets)):
        if not tickets:
            break
        number = data.draw(st.integers(0, len(tickets) - 1))
        ticket = tickets[number]
        if ticket.started is not None:
            del tickets[number]
        elif ticket.waits_for is not None and data.draw(st.booleans()):
            tickets[number] = replace(ticket, waits_for=None)
        elif may_start(ticket, tickets, CORES):
            assert ticket.waits_for is None
            before = [t for t in tickets if t.position < ticket.position and t.started is None]
            assert all(t.waits_for is not None for t in before), "first come, first served"
            tickets[number] = replace(ticket, started=1.0)
            order.append(ticket.position)
            assert sum(t.cores for t in tickets if t.started is not None) <= CORES
        else:
            assert why_waiting(ticket, tickets, CORES).startswith(("Dependency (", "Priority (", "Resources ("))
    if not any(ticket.started is not None for ticket in tickets):
        ready = [ticket for ticket in tickets if ticket.waits_for is None]
        assert [may_start(ticket, tickets, CORES) for ticket in ready] == [ticket == ready[0] for ticket in ready]


def waiting(position: int, cores: int = 1, waits_for: str | None = None, started: float | None = None) -> Ticket:
    return Ticket(position, position, "/runs/a", cores, waits_for=waits_for, started=started)


@pytest.mark.parametrize(
    ("tickets", "why"),
    [
        ([waiting(1, 4)], None),
        ([waiting(1, 2), waiting(0, 2, started=1.0)], None),
        ([waiting(1, 3), waiting(0, 2, started=1.0)], "Resources (3 cores wanted, 2 of 4 free)"),
        ([waiting(1, 1), waiting(0, 4, started=1.0)], "Resources (1 core wanted, 0 of 4 free)"),
        ([waiting(1, 1), waiting(0, 4)], "Priority (1 job before it)"),
        ([waiting(2, 1), waiting(0, 4), waiting(1, 1)], "Priority (2 jobs before it)"),
        ([waiting(1, 4), waiting(2, 1)], None),
        ([waiting(1, 1, waits_for="7")], "Dependency (job 7)"),
        ([waiting(1, 4), waiting(0, 4, waits_for="7")], None),
        ([waiting(2, 4), waiting(0, 4, waits_for="7"), waiting(1, 1)], "Priority (1 job before it)"),
    ],
)
def test_what_a_job_waits_for(tickets: list[Ticket], why: str | None) -> None:
    assert may_start(tickets[0], tickets, CORES) == (why is None)
    if why is not None:
        assert why_waiting(tickets[0], tickets, CORES) == why


# ---- tickets


def test_the_life_of_a_ticket(queue: LocalQueue) -> None:
    assert queue.tickets() == []
    assert not queue.folder.exists(), "whoever only looks writes nothing"
    ticket, file = queue.enter(Path("/runs/a_1"), 2, None)
    assert stat.S_IMODE(queue.folder.stat().st_mode) == 0o700
    assert ticket == Ticket(1, 1, "/runs/a_1", 2)
    assert queue.tickets() == [ticket] == [read_ticket(file)]
    assert queue.seen(submission("1"), "here") == QueueState("waiting", "it is its turn", where="here")

    begun = time.time()
    started = queue.try_start(file, ticket, 60)
    assert started.started == pytest.approx(begun, abs=LIMIT_SECS)
    assert started.limit == (started.started or 0) + 60
    assert queue.tickets() == [started] == [read_ticket(file)]
    seen = queue.seen(submission("1"), "here")
    assert seen == QueueState("running", None, 0, started.started, started.limit, where="here")

    back = queue.go_back(file, started)
    assert (back.number, back.position, back.requeues, back.started, back.limit) == (1, 2, 1, None, None)
    assert queue.tickets() == [back] == [read_ticket(file)]
    assert queue.seen(submission("1"), "here").requeues == 1
    assert queue.seen(submission("2"), "here") == QueueState("forgotten"), "a position is no number"
    assert queue.try_start(file, back, None).limit is None

    queue.leave(file, back)
    assert queue.tickets() == []
    assert queue.seen(submission("1"), "here") == QueueState("forgotten")
    assert sorted(path.name for path in queue.folder.iterdir()) == ["lock", "next.json"]


def test_a_job_gets_no_more_cores_than_there_are(queue: LocalQueue) -> None:
    alone, file = enter(queue, 99)
    assert alone.cores == CORES
    assert queue.try_start(file, alone, None).started is not None
    other, other_file = enter(queue, 1)
    assert queue.try_start(other_file, other, None) == other
    queue.leave(file, alone)
    assert queue.try_start(other_file, other, None).started is not None
    queue.leave(other_file, other)


def test_jobs_take_their_turns(queue: LocalQueue) -> None:
    (first, one), (second, two), (third, three) = enter(queue, 3), enter(queue, 2), enter(queue, 1)
    assert queue.try_start(three, third, None) == third
    first = queue.try_start(one, first, None)
    assert first.started is not None
    assert queue.try_start(two, second, None).started is None
    assert queue.try_start(three, third, None).started is None, "though a core is free"
    first = queue.go_back(one, first)
    assert queue.try_start(one, first, None).started is None, "it is the last one now"
    second, third = queue.try_start(two, second, None), queue.try_start(three, third, None)
    assert None not in (second.started, third.started)
    assert [ticket.number for ticket in queue.tickets()] == [2, 3, 1]
    for ticket, file in ((first, one), (second, two), (third, three)):
        queue.leave(file, ticket)


def test_a_job_that_waits_for_another_blocks_none(queue: LocalQueue) -> None:
    (follows, one), (other, two) = enter(queue, 4, "9"), enter(queue, 4)
    assert queue.try_start(one, follows, None).started is None
    assert queue.try_start(two, other, None).started is not None
    ready = replace(follows, waits_for=None)
    write_ticket(one, ready)
    assert queue.tickets()[0] == ready
    assert queue.try_start(one, ready, None).started is None
    queue.leave(two, other)
    assert queue.try_start(one, ready, None).started is not None
    queue.leave(one, ready)


def test_a_number_is_never_given_out_again(queue: LocalQueue) -> None:
    numbers = []
    for _ in range(3):
        ticket, file = enter(queue)
        numbers.append(ticket.number)
        back = queue.go_back(file, ticket)
        assert back.number == ticket.number
        queue.leave(file, back)
    assert numbers == [1, 3, 5]
    later = LocalQueue(queue.folder, CORES)
    ticket, file = enter(later)
    assert ticket.number == 7
    later.leave(file, ticket)


def test_the_ticket_of_a_dead_runner_vanishes(queue: LocalQueue) -> None:
    begin, end = os.pipe()

    def hold() -> None:
        ticket, file = enter(queue, CORES)
        assert queue.try_start(file, ticket, None).started is not None
        os.write(end, b"x")
        time.sleep(3600)

    with another_process(hold):
        assert os.read(begin, 1) == b"x"
        assert queue.seen(submission("1"), "here").phase == "running"
        mine, file = enter(queue, 1)
        assert queue.try_start(file, mine, None).started is None
    assert queue.seen(submission("1"), "here") == QueueState("forgotten")
    assert queue.try_start(file, mine, None).started is not None, "its cores are free"
    assert len(list(queue.folder.glob("ticket-*"))) == 1
    queue.leave(file, mine)
    os.close(begin)
    os.close(end)


def test_a_ticket_is_held_as_long_as_one_process_has_its_file(queue: LocalQueue) -> None:
    """The one that submits hands it to the runner, and goes."""
    ticket, file = enter(queue)
    with another_process(lambda: time.sleep(3600)):
        os.close(file)
        assert queue.tickets() == [ticket]
    assert queue.tickets() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"number": 1}', '{"of the future": 1}', "\xff"])
def test_what_is_no_ticket_is_passed_over(queue: LocalQueue, text: str) -> None:
    good, file = enter(queue)
    (queue.folder / "ticket-00000009.json").write_bytes(text.encode("latin-1"))  # nobody holds it
    held, strange = enter(queue)
    os.ftruncate(strange, 0)
    os.pwrite(strange, text.encode("latin-1"), 0)
    assert queue.tickets() == [good]
    assert not (queue.folder / "ticket-00000009.json").exists()
    queue.leave(file, good)
    queue.leave(strange, held)


def test_many_enter_at_once(queue: LocalQueue, tmp_path: Path) -> None:
    """Numbers are distinct, and no ticket is taken for that of a dead runner while it is made."""

    def work() -> None:
        numbers = []
        for _ in range(5):
            ticket, file = enter(queue)
            numbers.append(ticket.number)
            assert ticket in queue.tickets()
            queue.leave(file, ticket)
        (tmp_path / f"numbers-{os.getpid()}").write_text(json.dumps(numbers))

    pids = []
    for _ in range(4):
        if (pid := os.fork()) == 0:
            try:
                work()
                os._exit(0)
            except BaseException:
                os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0, 0]
    numbers = [number for path in tmp_path.glob("numbers-*") for number in json.loads(path.read_text())]
    assert sorted(numbers) == list(range(1, 21))
    assert queue.tickets() == []


def test_a_job_that_moves_is_not_taken_for_lost(queue: LocalQueue) -> None:
    """hpc-train wait would end with LOST, were it not to see the ticket while it is written or moved."""
    ticket, file = enter(queue)

    def move() -> None:
        mine = ticket
        while True:
            mine = queue.go_back(file, queue.try_start(file, mine, None))

    with another_process(move):
        end, phases = time.monotonic() + 0.7, set()
        while time.monotonic() < end:
            phases.add(queue.seen(submission("1"), "here").phase)
    assert phases <= {"waiting", "running"}
    os.close(file)


def test_the_queue_of_another_machine_cannot_be_asked(queue: LocalQueue) -> None:
    ticket, file = enter(queue)
    seen = queue.seen(submission("1", host="there"), "here")
    assert (seen.phase, seen.note) == ("unasked", "it is in the queue of there, which cannot be asked from here")
    queue.leave(file, ticket)


def test_a_job_that_was_never_queued(queue: LocalQueue) -> None:
    assert queue.seen(submission(None), "here") == QueueState("forgotten")


def test_where_the_queue_is_kept() -> None:
    host = socket.gethostname()
    assert queue_folder({}, Path("/home/me")) == Path(f"/home/me/.local/state/hpc_train/{host}/queue")
    assert queue_folder({"XDG_STATE_HOME": ""}, Path("/home/me")) == queue_folder({}, Path("/home/me"))
    assert queue_folder({"XDG_STATE_HOME": "relative"}, Path("/home/me")) == queue_folder({}, Path("/home/me"))
    assert queue_folder({"XDG_STATE_HOME": "/s"}, Path("/home/me")) == Path(f"/s/hpc_train/{host}/queue")


def test_jobs_get_gpus_of_their_own(tmp_path: Path) -> None:
    queue = LocalQueue(tmp_path / "queue", 8, gpus=3)
    first, first_file = queue.enter(tmp_path / "a", 1, None, gpus=2)
    second, second_file = queue.enter(tmp_path / "b", 1, None, gpus=2)

    first = queue.try_start(first_file, first, None)
    waiting = queue.try_start(second_file, second, None)
    assert first.devices == (0, 1)
    assert (waiting.started, waiting.devices) == (None, ())
    assert why_waiting(waiting, queue.tickets(), 8, 3) == "Resources (2 GPUs wanted, 1 of 3 free)"

    back = queue.go_back(first_file, first)
    assert queue.try_start(second_file, second, None).devices == (0, 1)
    assert queue.try_start(first_file, back, None).started is None
    assert queue.job_dir_of(str(second.number)) == tmp_path / "b"
    queue.leave(first_file, back)
    queue.leave(second_file, second)


def test_jobs_at_once_have_cpus_of_their_own(queue: LocalQueue) -> None:
    mask = os.sched_getaffinity(0)
    wide = LocalQueue(queue.folder, 2 * len(mask))  # more jobs at once than there are CPUs
    taken: list[int] = []
    held = []
    for _ in range(len(mask)):
        ticket, file = wide.enter(Path("/runs/a"), 1, None)
        ticket = wide.try_start(file, ticket, None, mask)
        taken += ticket.cpus
        held.append((file, ticket))
    assert sorted(taken) == sorted(mask)
    more, file = wide.enter(Path("/runs/b"), 1, None)
    started = wide.try_start(file, more, None, mask)
    assert started.started is not None and started.cpus == (), "all are taken, and it runs on all, as ever"
    assert read_ticket(held[0][0]).cpus == held[0][1].cpus
    os.close(held[0][0])  # as of a runner that was killed
    last, last_file = wide.enter(Path("/runs/c"), 1, None)
    last = wide.try_start(last_file, last, None, mask)
    assert last.cpus == held[0][1].cpus
    assert wide.go_back(last_file, last).cpus == read_ticket(last_file).cpus == ()
    for one in (file, last_file, *(file for file, _ in held[1:])):
        os.close(one)


def test_a_ticket_of_another_version_is_one(queue: LocalQueue) -> None:
    ticket, file = queue.enter(Path("/runs/a"), 1, None)
    text = json.loads(os.pread(file, 1 << 16, 0))
    del text["cpus"]
    os.pwrite(file, (content := json.dumps({**text, "of_later": [1]}).encode()), 0)
    os.ftruncate(file, len(content))
    assert read_ticket(file) == ticket
    os.close(file)
