"""Peers: the other servers, seen from the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpc_train.distributed.parameter_server import window_layout as at
from hpc_train.distributed.parameter_server.window import Patience, Window
from hpc_train.distributed.parameter_server.window_layout import ServerLayout


class Peers:
    """The other servers, seen from the first one.

    Args:
        layouts: Of all servers, the first one included.

    Attributes:
        meanwhile: Called again and again while a server is waited for.
    """

    def __init__(self, window: Window, layouts: Sequence[ServerLayout]) -> None:
        self._window, self._layouts, self._wanted = window, layouts, 0
        self.meanwhile: Callable[[], None] = lambda: None

    def fetch_states(self, into: Sequence[np.ndarray], version: int) -> None:
        """Copies what each of them has written of its state into an array of `into` (uint8), one for each.

        Each is asked first, and answers between two updates, once it has made `version` updates: as many as the first
        server, or a few more, since every gradient goes to all servers.
        """
        self._wanted += 1
        for server, layout in self._others():
            self._window.replace(server, layout.word(at.STATE_AGE), version)
            self._window.replace(server, layout.word(at.STATE_WANTED), self._wanted)
        for (server, layout), array in zip(self._others(), into, strict=True):
            patience = Patience()
            while self._window.words(server, layout.word(at.STATE_READY))[0] != self._wanted:
                self.meanwhile()
                patience.wait()
            self._window.add(server, layout.word(at.BUSY), 1)
            self._window.get(array, server, layout.state)
            self._window.flush(server)
            self._window.add(server, layout.word(at.BUSY), -1)

    def release(self) -> None:
        """Lets them leave."""
        for server, layout in self._others():
            self._window.replace(server, layout.word(at.RELEASED), 1)

    def _others(self) -> list[tuple[int, ServerLayout]]:
        return list(enumerate(self._layouts))[1:]
