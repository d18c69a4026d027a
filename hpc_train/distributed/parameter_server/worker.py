"""Worker: takes tickets, pulls parameters and pushes gradients. What it does is local; servers need not answer."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hpc_train.distributed.parameter_server import window_layout as at
from hpc_train.distributed.parameter_server.window import Patience, Window
from hpc_train.distributed.parameter_server.window_layout import ServerLayout
from hpc_train.distributed.partition import Partition, Piece
from hpc_train.distributed.tensors import aligned, aligned_zeros

FIRST = 0
"""The server that gives out tickets."""
MAX_ATTEMPTS = 3
"""At so many attempts to copy parameters a server is asked to wait."""


@dataclass(frozen=True)
class State:
    """What servers report: whether to leave, the clock of the slowest worker, and below which tickets are good."""

    stop: bool
    slowest: int
    limit: int


class Worker:
    """One worker's side of the window.

    Args:
        layouts: Of all servers. worker: this worker's number.

    Attributes:
        arena: The parameters, uint8, as `pull` found them; versions: of each server, at which the gradient that is
            pushed next was computed.
        pushed: Gradients pushed so far. dismissed: whether another worker has left, so that `mean` has no answer.
    """

    def __init__(self, window: Window, layouts: Sequence[ServerLayout], partition: Partition, worker: int) -> None:
        self._window, self._layouts, self._partition, self._worker = window, layouts, partition, worker
        self._pieces: list[list[tuple[int, int, Piece]]] = [[] for _ in partition.variables]
        for server in range(len(layouts)):
            for number, piece in enumerate(partition.pieces(server)):
                self._pieces[piece.variable].append((server, number, piece))
        self.arena = aligned_zeros(partition.nbytes)
        self.versions = [0] * len(layouts)
        self._header = np.zeros(at.HEADER_WORDS, np.int64)
        self._heads = aligned_zeros(len(layouts) * at.HEAD).view(np.int64).reshape(len(layouts), -1)
        self.pushed = 0
        self.dismissed = False

    def take_ticket(self) -> int:
        """The number of the gradient that this worker may compute next: 0, 1, 2 …, each once among all workers."""
        return self._window.add(FIRST, self._layouts[FIRST].word(at.TICKETS), 1)

    def state(self) -> State:
        """What the servers report now; a gradient that has not reached all of them does not count."""
        words = self._window.words(FIRST, 0, at.APPLIED)
        others = list(enumerate(self._layouts))[1:]
        slowest = [int(self._window.words(server, layout.word(at.SLOWEST))[0]) for server, layout in others]
        return State(bool(words[at.STOP]), min([int(words[at.SLOWEST]), *slowest]), int(words[at.LIMIT]))

    def ask_to_stop(self, because: int = at.SIGNALLED) -> None:
        """Asks all workers to leave, because of a signal or another reason (see layout)."""
        self._window.replace(FIRST, self._layouts[FIRST].word(at.STOP), because)

    def wait_with(self, ticket: int | None) -> None:
        """Reports that this worker waits until `ticket` is good, having nothing to push; None: it waits no more."""
        for server, layout in enumerate(self._layouts):
            place = layout.header(self._worker) + at.WAITS * at.WORD
            self._window.replace(server, place, 0 if ticket is None else ticket + 1)

    def pull(self, arena: np.ndarray | None = None) -> list[int]:
        """Copies the newest parameters of each server into `arena` (this worker's where None); returns their versions.

        Never torn: a copy that a server has begun to overwrite meanwhile is fetched again; if that happens again, the
        server is asked to hold on.
        """
        with self._helped():
            return self._pull(self.arena if arena is None else arena)

    def _pull(self, target: np.ndarray) -> list[int]:
        cuts = self._partition.cuts
        waiting = dict.fromkeys(range(len(self._layouts)), 0)
        attempts, held = 0, []
        while waiting:
            attempts += 1
            if attempts == MAX_ATTEMPTS:
                held = list(waiting)
                self._hold(held, 1)
            for server in waiting:
                layout = self._layouts[server]
                waiting[server] = int(self._window.words(server, layout.word(at.PUBLICATION))[0])
                start = layout.parameters[waiting[server] % 2]
                self._window.get(self._heads[server].view(np.uint8), server, start)
                self._window.get(target[cuts[server] : cuts[server + 1]], server, start + at.HEAD)
            for server in list(waiting):
                layout = self._layouts[server]
                self._window.flush(server)
                begun = int(self._window.words(server, layout.parameters[waiting[server] % 2])[0])
                if begun == waiting[server]:
                    del waiting[server]
        self._hold(held, 0)
        return [int(head[1]) for head in self._heads]

    def _hold(self, servers: Sequence[int], value: int) -> None:
        for server in servers:
            self._window.replace(server, self._layouts[server].header(self._worker) + at.HELD * at.WORD, value)

    def mean(self, numbers: np.ndarray) -> np.ndarray:
        """The mean of what all workers give for the gradient that each computes now, so that they wait for each other.

        Where one of them will not come any more, because the servers ask all to stop or it has left, this worker is
        dismissed, and gets its own numbers back.

        Args:
            numbers: float64 `[n]`, n as many as the layout has room for.
        """
        layout, exchange, patience = self._layouts[FIRST], self.pushed + 1, Patience()
        workers = layout.workers
        with self._helped():
            self._window.put(numbers.view(np.uint8), FIRST, layout.numbers(self._worker))
            self._window.flush(FIRST)
            self._window.replace(FIRST, layout.exchange + self._worker * at.WORD, exchange)
            while (flags := self._window.words(FIRST, layout.exchange, workers)).min() < exchange:
                if self._window.words(FIRST, layout.word(at.STOP))[0]:
                    self.dismissed = True
                    return numbers
                patience.wait()
            if flags.max() == at.HAS_LEFT:
                self.dismissed = True
                return numbers
            found = self._window.words(FIRST, layout.numbers(0), workers * numbers.size)
        mean: np.ndarray = found.view(np.float64).reshape(workers, -1).mean(axis=0)
        return mean

    def push(
        self,
        gradients: Sequence[np.ndarray | tuple[np.ndarray, np.ndarray] | None],
        carried: Sequence[np.ndarray],
        loss: float,
        examples: int,
        spent: Mapping[str, float] | None,
        weight: float = 1.0,
    ) -> None:
        """Writes one gradient into this worker's mailboxes, out of which the one before has been taken.

        Args:
            gradients: Of each variable: all of it; the numbers (int64 `[n]`) and values of its rows; None: nothing.
            carried: Arrays that the first server keeps.
            spent: The seconds that SPENT names, and what GPU names, where known; None: unknown.
            weight: By which gradients and loss are multiplied.
        """
        with self._helped():
            for variable, gradient in enumerate(gradients):
                if isinstance(gradient, tuple):
                    self._put_rows(variable, *gradient)
                elif gradient is not None:
                    flat = gradient.reshape(-1)
                    for server, _, piece in self._pieces[variable]:
                        part = flat[piece.start : piece.stop].view(np.uint8)
                        self._window.put(part, server, self._place(server, piece))
            place = self._layouts[FIRST].mailbox(self._worker) + self._layouts[FIRST].carried
            for array in carried:
                flat = array.reshape(-1).view(np.uint8)
                self._window.put(flat, FIRST, place)
                place += aligned(flat.size)
            self._announce(at.GRADIENT, loss, examples, spent, weight)

    def push_bad(self, loss: float, examples: int, spent: Mapping[str, float] | None) -> None:
        """Reports that the gradient is not finite, and sends none."""
        self._announce(at.BAD, loss, examples, spent)

    def leave(self) -> None:
        """Informs the servers, and workers that wait for its numbers, that this worker pushes no more."""
        layout = self._layouts[FIRST]
        if layout.exchanged:
            self._window.replace(FIRST, layout.exchange + self._worker * at.WORD, at.HAS_LEFT)
        self._announce(at.LEAVES, 0.0, 0, None)

    def _put_rows(self, variable: int, numbers: np.ndarray, values: np.ndarray) -> None:
        """Rows go to the servers that hold them, numbered within their piece."""
        order = np.argsort(numbers, kind="stable")
        numbers, values = numbers[order], values[order]
        for server, number, piece in self._pieces[variable]:
            row = (piece.stop - piece.start) // piece.shape[0]
            low, high = np.searchsorted(numbers, [piece.start // row, piece.stop // row])
            own = numbers[low:high] - piece.start // row
            layout = self._layouts[server]
            place = layout.rows[number]
            assert place is not None
            start = layout.mailbox(self._worker) + place
            count = np.array([high - low], np.int64)
            self._window.put(count.view(np.uint8), server, start)
            if high > low:
                self._window.put(own.view(np.uint8), server, start + at.HEAD)
                part = values[low:high].reshape(-1).view(np.uint8)
                self._window.put(part, server, self._place(server, piece))
            self._window.flush(server)

    def _place(self, server: int, piece: Piece) -> int:
        return self._layouts[server].mailbox(self._worker) + piece.offset - self._partition.cuts[server]

    def _announce(
        self, kind: int, loss: float, examples: int, spent: Mapping[str, float] | None, weight: float = 1.0
    ) -> None:
        """The header, then its flag, once all that it announces has arrived."""
        self.pushed += 1
        header = self._header
        header[at.KIND] = kind
        numbers = header.view(np.float64)
        numbers[at.LOSS], numbers[at.ROWS], numbers[at.WEIGHT] = loss, examples, weight
        for name, word in at.SPENT.items():
            numbers[word] = 0.0 if spent is None else spent.get(name, 0.0)
        for name, word in at.GPU.items():
            numbers[word] = math.nan if spent is None else spent.get(name, math.nan)
        servers = list(enumerate(self._layouts))
        if kind == at.LEAVES:  # the first server lets the others go once it has heard of it
            servers.reverse()
        for server, layout in servers:
            header[at.VERSION] = self.versions[server]
            place = layout.header(self._worker)
            self._window.put(header[at.VERSION :].view(np.uint8), server, place + at.VERSION * at.WORD)
            self._window.flush(server)
            self._window.replace(server, place + at.FLAG * at.WORD, self.pushed)

    def wait_until_taken(self) -> None:
        """Waits until all servers have applied what this worker has pushed, and published what came of it."""
        for server, layout in enumerate(self._layouts):
            patience = Patience()
            while self._window.words(server, layout.word(at.APPLIED + self._worker))[0] < self.pushed:
                patience.wait()

    @contextmanager
    def _helped(self) -> Iterator[None]:
        """Around transfers: servers that have to help do not sleep meanwhile."""
        servers = [] if self._window.shared else list(enumerate(self._layouts))
        for server, layout in servers:
            self._window.add(server, layout.word(at.BUSY), 1)
        try:
            yield
        finally:
            for server, layout in servers:
                self._window.add(server, layout.word(at.BUSY), -1)


class Prefetch:
    """Pulls parameters in a thread while the worker computes, as soon as its last push has been applied."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._arena = worker, aligned_zeros(worker.arena.size)
        self._versions: Future[list[int]] = Future()

    def begin(self) -> None:
        """Begins to pull."""
        self._versions = Future()
        threading.Thread(target=self._pull, name="hpc_train-prefetch", daemon=True).start()

    def _pull(self) -> None:
        try:
            self._worker.wait_until_taken()
            self._versions.set_result(self._worker.pull(self._arena))
        except BaseException as error:
            self._versions.set_exception(error)

    def wait(self) -> None:
        """Waits for what was begun."""
        self._versions.result()

    def take(self) -> None:
        """Makes it the worker's parameters."""
        np.copyto(self._worker.arena, self._arena)
        self._worker.versions = self._versions.result()
