"""What lies where in a server's window, and views of it by name. Pure.

control       words of 8 bytes, see the constants below; from APPLIED on, one for each worker
headers       HEADER_WORDS words for each worker, written by it: its flag last
parameters    two copies, each with a head of two words: the publication that was begun there, its version
mailboxes     for each worker: the server's range of the arena, then for each piece whose gradient is
              rows a count and the rows' numbers, then what the worker carries (on the first server)
state         parameters and optimizer of this server, for the first one to fetch (on the others)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_train.distributed.partition import Partition, Piece
from hpc_train.distributed.tensors import aligned

WORD = 8
LINE = 64

TICKETS, STOP, PUBLICATION, SLOWEST, STATE_WANTED, STATE_READY, STATE_AGE, RELEASED, BUSY, LIMIT, TEST = range(11)
"""Control words. TICKETS, STOP: on the first server. SLOWEST: the fewest gradients applied of any worker that trains.
STATE_WANTED, STATE_READY: the snapshot that is asked for, and the one in `state`; STATE_AGE: how many updates it is to
contain at least. RELEASED: the server may leave. BUSY:
ranks that wait for the server's help right now. LIMIT: where a lost worker does not end the job, below which tickets
are good; on the first server."""
SIGNALS = 11
"""Control words of the first server, by signal in the order of STOP_CODES: whether another rank has received it."""
APPLIED = 16
"""Control word of the first worker: how many of its pushes have been taken out of its mailbox."""

HEADER_WORDS = 16
FLAG, VERSION, KIND, LOSS, ROWS, ALL, INPUT, COMPUTE, COMMUNICATION, WEIGHT, GAP, HELD, WAITS = range(13)
BESIDE, GPU_CLOCK, GPU_HELD = range(13, HEADER_WORDS)
"""Header words: number of the push, version of the parameters it was computed at, what it is; then, as float64, the
loss, the examples, the seconds that SPENT names, and the weight by which loss and gradients are multiplied. HELD:
whether the worker's pulls are overtaken by publications, which wait. WAITS: the ticket that it waits with and 1; 0: it
waits for none."""
SPENT = {"all": ALL, "input": INPUT, "compute": COMPUTE, "communication": COMMUNICATION, "gap": GAP, "beside": BESIDE}
"""What a worker reports of the time since its push before: all of it, and what of it went where; 0 where not known.
The gap, in which its device waited for the host, is beside the others, and so is what its hooks took."""
GPU = {"gpu_clock": GPU_CLOCK, "gpu_held": GPU_HELD}
"""What a worker's GPU was like, as telemetry.gpu_clock has it; NaN where not known."""
SIGNALLED, OUT_OF_ROUNDS, FINISH, ALL_APPLIED = 1, 2, 3, 4
"""Why STOP is set: a signal came; a rule or a hook asks to end training; with bound 0, a worker has no further batch,
and rounds cannot be completed; all steps have been made, and those who wait for tickets may leave."""
NO_LIMIT = 2**62
"""Of tickets, where a job has no last step."""
HAS_LEFT = 2**62
"""The number of an exchange that a worker which has left took part in: it takes part in none."""
GRADIENT, BAD, LEAVES, LOST = range(4)
"""Kinds of push: a gradient; one that is not finite and is not sent; the worker's last word; that
it is lost, which the first server writes."""

HEAD = LINE
"""Bytes of the head of parameters, and of the count before rows' numbers."""


@dataclass(frozen=True)
class ServerLayout:
    """Offsets in one server's window, bytes.

    Attributes:
        nbytes: Of the window. part: of the server's range of the arena.
        parameters: Of the two copies' heads; what they hold begins HEAD bytes later.
        rows: Of the counts of pieces whose gradient is rows, by piece, from the begin of a mailbox.
        carried: Of what the worker carries, from the begin of a mailbox.
        exchange: Of what workers let each other know while they compute: see `numbers`.
    """

    workers: int
    part: int
    headers: int
    parameters: tuple[int, int]
    mailboxes: int
    mailbox_nbytes: int
    rows: tuple[int | None, ...]
    carried: int
    state: int
    nbytes: int
    exchange: int = 0
    exchanged: int = 0

    def word(self, number: int) -> int:
        """Of a control word."""
        return number * WORD

    def header(self, worker: int) -> int:
        """Of a worker's header."""
        return self.headers + worker * HEADER_WORDS * WORD

    def numbers(self, worker: int) -> int:
        """Of what a worker lets the others know: float64; those of all lie after the words with exchanges' numbers."""
        return self.exchange + (self.workers + worker * self.exchanged) * WORD

    def mailbox(self, worker: int) -> int:
        """Of a worker's mailbox."""
        return self.mailboxes + worker * self.mailbox_nbytes


def server_layout(
    partition: Partition, server: int, workers: int, carried_nbytes: int, state_nbytes: int, exchanged: int = 0
) -> ServerLayout:
    """The window of `server`; what workers carry goes to the first one, what servers hand over lies on the others.

    Args:
        exchanged: How many numbers each worker lets the others know, on the first server.
    """
    exchanged = exchanged if server == 0 else 0
    part = partition.nbytes_of(server)
    headers = aligned((APPLIED + workers) * WORD)
    exchange = headers + workers * HEADER_WORDS * WORD
    first = exchange + aligned(workers * (1 + exchanged) * WORD if exchanged else 0)
    second = first + HEAD + part
    boxes = second + HEAD + part
    rows: list[int | None] = []
    end = part
    for piece in partition.pieces(server):
        of_rows = partition.variables[piece.variable].rows
        rows.append(end if of_rows else None)
        end += HEAD + aligned(piece.shape[0] * WORD) if of_rows else 0
    carried = end
    mailbox_nbytes = aligned(end + (carried_nbytes if server == 0 else 0))
    state = boxes + workers * mailbox_nbytes
    return ServerLayout(
        workers,
        part,
        headers,
        (first, second),
        boxes,
        mailbox_nbytes,
        tuple(rows),
        carried,
        state,
        state + (aligned(state_nbytes) if server > 0 else 0),
        exchange,
        exchanged,
    )


@dataclass(frozen=True)
class Rows:
    """A gradient that is some rows of a piece: `count` (int64 `[1]`), their numbers and values, with room for all."""

    count: np.ndarray
    numbers: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Mailbox:
    """What one worker has pushed, as views of the server's memory.

    Attributes:
        header: int64 words. gradients: of each of the server's pieces, an array of its shape, or Rows.
        carried: uint8.
    """

    worker: int
    header: np.ndarray
    gradients: tuple[np.ndarray | Rows, ...]
    carried: np.ndarray

    @property
    def flag(self) -> int:
        """The number of the push that is in it."""
        return int(self.header[FLAG])

    @property
    def kind(self) -> int:
        """What that push is: GRADIENT, BAD or LEAVES."""
        return int(self.header[KIND])

    def number(self, word: int) -> float:
        """A word of the header that holds a float64."""
        return float(self.header[word : word + 1].view(np.float64)[0])


def mailboxes(
    memory: np.ndarray, layout: ServerLayout, partition: Partition, server: int, carried_nbytes: int
) -> list[Mailbox]:
    """All of a server's mailboxes, by worker."""
    found = []
    for worker in range(layout.workers):
        place, start = layout.header(worker), layout.mailbox(worker)
        box = memory[start : start + layout.mailbox_nbytes]
        gradients: list[np.ndarray | Rows] = []
        for piece, rows in zip(partition.pieces(server), layout.rows, strict=True):
            values = piece.view(box, partition.cuts[server])
            gradients.append(values if rows is None else _rows(box, rows, piece, values))
        header = memory[place : place + HEADER_WORDS * WORD].view(np.int64)
        carried = box[layout.carried : layout.carried + carried_nbytes] if server == 0 else box[:0]
        found.append(Mailbox(worker, header, tuple(gradients), carried))
    return found


def _rows(box: np.ndarray, place: int, piece: Piece, values: np.ndarray) -> Rows:
    numbers = box[place + HEAD : place + HEAD + aligned(piece.shape[0] * WORD)]
    return Rows(box[place : place + WORD].view(np.int64), numbers.view(np.int64)[: piece.shape[0]], values)


def control_words(memory: np.ndarray, layout: ServerLayout) -> np.ndarray:
    """The control words of a server's own window, int64 `[APPLIED + workers]`."""
    return memory[: (APPLIED + layout.workers) * WORD].view(np.int64)
