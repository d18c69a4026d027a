"""Workers that were lost, and the tickets that they took with them. For the first server."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from hpc_train.distributed.parameter_server import window_layout as at
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.parameter_server.window_layout import ServerLayout

FIRST = 0


class LostWorkers:
    """Has all servers forget workers that were lost. What it writes goes into the mailboxes of those alone.

    A gradient that the worker has announced to the first server is a step: where it died before it had announced it to
    another one, that is done here. In memory of one node the gradient is there by then, whole; elsewhere it need not
    be, and that server leaves it out.
    """

    def __init__(self, window: Window, layouts: Sequence[ServerLayout]) -> None:
        self._window, self._layouts = window, layouts
        self._last: dict[int, np.ndarray] = {}
        self._open: list[tuple[int, int]] = []

    def add(self, worker: int) -> None:
        """`worker` is lost; all that it has written has arrived."""
        self._last[worker] = self._window.words(FIRST, self._layouts[FIRST].header(worker), at.HEADER_WORDS)
        self._open += [(worker, server) for server in range(len(self._layouts))]

    def go_on(self) -> bool:
        """Does what can be done by now; whether something is left to do. To be called again and again."""
        self._open = [one for one in self._open if not self._tell(*one)]
        return bool(self._open)

    def _tell(self, worker: int, server: int) -> bool:
        """Whether `server` has been told that `worker` is lost: once it has taken all that the worker has announced."""
        layout, last = self._layouts[server], self._last[worker]
        place = layout.header(worker)
        header = self._window.words(server, place, at.HEADER_WORDS)
        if header[at.HELD]:
            self._window.replace(server, place + at.HELD * at.WORD, 0)
        if self._window.words(server, layout.word(at.APPLIED + worker))[0] < header[at.FLAG]:
            return False
        if header[at.FLAG] < last[at.FLAG]:
            kind = int(last[at.KIND])
            lacks = kind == at.GRADIENT and not self._window.shared
            self._announce(worker, server, last, at.BAD if lacks else kind, int(last[at.FLAG]))
            return False
        self._announce(worker, server, last, at.LOST, int(header[at.FLAG]) + 1)
        return True

    def _announce(self, worker: int, server: int, like: np.ndarray, kind: int, flag: int) -> None:
        place, header = self._layouts[server].header(worker), like.copy()
        header[at.KIND], header[at.HELD], header[at.WAITS] = kind, 0, 0
        self._window.put(header[at.VERSION :].view(np.uint8), server, place + at.VERSION * at.WORD)
        self._window.flush(server)
        self._window.replace(server, place + at.FLAG * at.WORD, flag)


class Deals:
    """How far tickets are good. A worker whose ticket is not waits; those that lost workers had are dealt again.

    Who had which is not known, and need not be: once all workers that are left wait, no gradient is on its way, and
    what lacks is dealt to them.

    Args:
        control: The first server's control words. waits: by worker, the ticket that it waits with and 1; else 0.
        tickets: Steps to be made; None: without end.
    """

    def __init__(self, control: np.ndarray, waits: np.ndarray, tickets: int | None) -> None:
        self._control, self._waits, self._tickets = control, waits, tickets
        control[at.LIMIT] = at.NO_LIMIT if tickets is None else tickets

    def deal(self, applied: int, training: Collection[int]) -> None:
        """Deals what lacks where all of the `training` workers wait; where nothing does, lets them leave.

        Args:
            applied: Steps made since the run began.
        """
        if self._tickets is None or not training:
            return
        held = sorted(int(self._waits[worker]) - 1 for worker in training)
        if held[0] < self._control[at.LIMIT]:  # or -1: computes, or is about to
            return
        lacking = self._tickets - applied
        if lacking <= 0:
            self._control[at.STOP] = self._control[at.STOP] or at.ALL_APPLIED
        elif lacking <= len(held):
            self._control[at.LIMIT] = held[lacking - 1] + 1
        else:
            self._control[at.LIMIT] = self._control[at.TICKETS] + lacking - len(held)
