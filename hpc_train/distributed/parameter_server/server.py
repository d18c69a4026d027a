"""Server: applies each gradient as it arrives to its part of the parameters, and publishes what comes of it.

Dean et al., "Large scale distributed deep networks", NIPS 2012 (Downpour SGD), with Ho et al.'s bound (clocks.py). With
bound 0 the gradients of a round, one from each worker, are averaged and applied as one: synchronous training, as in
Chen et al., "Revisiting distributed synchronous SGD", ICLR workshop 2016.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpc_train.distributed.parameter_server import window_layout as at
from hpc_train.distributed.parameter_server.clocks import NOBODY, Clocks
from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard
from hpc_train.distributed.parameter_server.window import Patience, Window
from hpc_train.distributed.parameter_server.window_layout import Mailbox, ServerLayout, control_words, mailboxes
from hpc_train.distributed.partition import Partition


@dataclass(frozen=True)
class Applied:
    """One update, or one that was left out because its numbers were bad.

    Attributes:
        workers: Whose gradients it was made of; bad: those of them whose numbers were not finite.
        staleness: In updates. loss: mean over the workers. examples: all together.
        spent: By worker, the seconds that layout.SPENT names, and what layout.GPU names, where known.
    """

    workers: tuple[int, ...]
    staleness: int
    loss: float
    examples: int
    spent: tuple[Mapping[str, float], ...]
    bad: tuple[int, ...]


class Events(Protocol):
    """What happens beside the updates."""

    def applying(self) -> None:
        """An update begins."""
        ...

    def applied(self, update: Applied) -> None:
        """An update has been made, or left out; the next one has not begun."""
        ...

    def idle(self) -> None:
        """There is nothing to apply. Called often."""
        ...


class Server:
    """One parameter server. Its window is shared with all other ranks.

    Args:
        server: Its number, which is its rank.
        bound: max_staleness; None: no bound.
        scale: Divide the learning rate of an update by its staleness, where that is above 1.
        survives: Whether workers may be lost.

    Attributes:
        version: Updates made so far (those left out count too). clocks: what the workers have done.
        carried: What each worker carried last (uint8), None before its first gradient. On the first server.
        lost: The workers that were. ended_by_loss: whether the last one that trained was, before anybody asked to stop.
        waits: By worker, the ticket that it waits with and 1, else 0.
    """

    def __init__(
        self,
        window: Window,
        layout: ServerLayout,
        partition: Partition,
        server: int,
        shard: OptimizerShard,
        carried_nbytes: int = 0,
        bound: int | None = None,
        scale: bool = False,
        survives: bool = False,
    ) -> None:
        self._window, self._layout, self._shard = window, layout, shard
        self._bound, self._scale, self._survives = bound, scale, survives
        memory = window.memory
        self.control = self._control = control_words(memory, layout)
        self._boxes = mailboxes(memory, layout, partition, server, carried_nbytes)
        headers = memory[layout.headers : layout.header(layout.workers)].view(np.int64)
        by_worker = headers.reshape(layout.workers, at.HEADER_WORDS)
        self._flags, self._held, self.waits = (by_worker[:, word] for word in (at.FLAG, at.HELD, at.WAITS))
        self.lost: set[int] = set()
        self.ended_by_loss = False
        self._taken = np.zeros(layout.workers, np.int64)
        self._copies = [
            (memory[start : start + at.HEAD].view(np.int64), memory[start + at.HEAD : start + at.HEAD + layout.part])
            for start in layout.parameters
        ]
        self._state = memory[layout.state :]
        self._round: dict[int, Mailbox] = {}
        self._next = 0
        self.version = self._published = 0
        self.clocks = Clocks(layout.workers)
        self.carried: list[np.ndarray | None] = [None] * layout.workers
        shard.bind(self._boxes)
        self.publish()

    def publish(self) -> None:
        """Lets the workers see the parameters as they are now.

        They go into the copy that was not published last; a worker that still reads what was there finds out, since
        the number in its head has changed.
        """
        publication = int(self._control[at.PUBLICATION]) + 1
        head, copy = self._copies[publication % 2]
        head[0] = publication
        self._window.sync()
        self._shard.write_parameters(copy)
        head[1] = self._published = self.version
        self._window.sync()
        self._control[at.PUBLICATION] = publication
        self._window.sync()

    def stop(self, because: int = at.SIGNALLED) -> None:
        """Asks all workers to leave, because of a signal or another reason (see layout); for the first server."""
        self._control[at.STOP] = because

    @property
    def asked_to_finish(self) -> bool:
        """Whether all workers have been asked to leave because a rule or a hook ends training; on the first server."""
        return bool(self._control[at.STOP] == at.FINISH)

    @property
    def signalled(self) -> bool:
        """Whether all workers have been asked to leave because of a signal; on the first server."""
        return bool(self._control[at.STOP] == at.SIGNALLED)

    def serve(self, events: Events, until_released: bool = False) -> None:
        """Serves until all workers have left, which they do by themselves.

        Args:
            until_released: And until the first server, which fetches the state before, lets this one go.
        """
        patience = Patience()
        while self._is_wanted(until_released):
            self.let_others_move()
            wanted = self._control[at.STATE_WANTED]
            if wanted != self._control[at.STATE_READY] and self.version >= self._control[at.STATE_AGE]:
                self._shard.write_state(self._state)
                self._window.sync()
                self._control[at.STATE_READY] = wanted
            if self._survives:
                self._control[at.SLOWEST] = self._slowest()
            if self._take_what_has_come(events):
                patience.reset()
                continue
            events.idle()
            if self._control[at.BUSY] > len(self.lost):  # of whom each may have been lost while it was helped
                patience.reset()
            patience.wait()

    def let_others_move(self) -> None:
        """Sees what others have written, and lets MPI do what they ask for."""
        if self._window.shared:
            self._window.sync()
        else:
            self._window.progress()

    def _is_wanted(self, until_released: bool) -> bool:
        if until_released and self._survives:  # a lost worker may have taken leave of the first one alone
            return not self._control[at.RELEASED]
        return bool(self.clocks.training or (until_released and not self._control[at.RELEASED]))

    def _slowest(self) -> int:
        """The slowest clock that others have to mind: not that of a worker that waits for tickets."""
        if not self._survives:
            return self.clocks.slowest
        clocks = (self.clocks.applied[worker] for worker in self.clocks.training if not self.waits[worker])
        return min(clocks, default=NOBODY)

    def _take_what_has_come(self, events: Events) -> bool:
        """Applies what lies in the mailboxes; False where there is nothing.

        Each update is published, and its worker let go, before the next one: workers that came together would
        otherwise wait together, compute together, and come together again.
        """
        have = np.flatnonzero(self._flags > self._taken)
        if not have.size or self._held.any():
            return False
        self._window.sync()  # what the flags announce is read after them
        first = int(np.searchsorted(have, self._next))
        for worker in np.roll(have, -first).tolist():
            box = self._boxes[worker]
            self._taken[worker] += 1
            assert box.flag == self._taken[worker], "a worker pushed before its last push was taken"
            if box.kind in (at.LEAVES, at.LOST):
                self.clocks.leave(worker)
                if box.kind == at.LOST:
                    self.lost.add(worker)
                    self.ended_by_loss = not (self.clocks.training or self._control[at.STOP])
                self._let_go([worker])
            elif self._bound == 0:
                self._round[worker] = box
            else:
                self._update([box], events)
                self._let_go([worker])
            self._next = worker + 1
        self._let_go(self._close_round(events))
        return True

    def _let_go(self, workers: Sequence[int]) -> None:
        if self.version != self._published:
            self.publish()
        self._control[at.SLOWEST] = self._slowest()
        for worker in workers:
            self._control[at.APPLIED + worker] = self._taken[worker]

    def _close_round(self, events: Events) -> list[int]:
        """Bound 0: the workers whose round is over; one that nobody can complete any more is dismissed."""
        if not self._round:
            return []
        workers = sorted(self._round)
        if len(workers) == self._layout.workers:
            self._update([self._round[worker] for worker in workers], events)
        elif len(self.clocks.training) == self._layout.workers:
            return []
        elif not self._control[at.STOP]:
            self._control[at.STOP] = at.OUT_OF_ROUNDS
        self._round.clear()
        return workers

    def _update(self, boxes: list[Mailbox], events: Events) -> None:
        events.applying()
        workers = tuple(box.worker for box in boxes)
        bad = tuple(box.worker for box in boxes if box.kind == at.BAD)
        staleness = max(self.version - int(box.header[at.VERSION]) for box in boxes)
        if not bad:
            assert all(box.kind == at.GRADIENT for box in boxes)
            self._shard.apply(boxes, 1 / staleness if self._scale and staleness > 1 else 1.0)
            for box in boxes:
                self.carried[box.worker] = _copied(self.carried[box.worker], box.carried)
        self.version += 1
        for worker in workers:
            self.clocks.tick(worker, staleness)
        events.applied(
            Applied(
                workers,
                staleness,
                sum(box.number(at.LOSS) for box in boxes) / sum(box.number(at.WEIGHT) for box in boxes),
                sum(int(box.number(at.ROWS)) for box in boxes),
                tuple(_told(box) for box in boxes),
                bad,
            )
        )


def _told(box: Mailbox) -> dict[str, float]:
    numbers = {name: box.number(word) for name, word in {**at.SPENT, **at.GPU}.items()}
    return {name: number for name, number in numbers.items() if not math.isnan(number)}


def _copied(before: np.ndarray | None, array: np.ndarray) -> np.ndarray:
    copy = np.empty_like(array) if before is None else before
    copy[:] = array
    return copy
