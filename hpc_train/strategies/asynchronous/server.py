"""A parameter server that is not the first one."""

from __future__ import annotations

from hpc_train.distributed.parameter_server.server import Applied
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.parameter_server.window_layout import SIGNALLED, STOP, ServerLayout
from hpc_train.engine.run_context import RunContext


class ServerEvents:
    """What a server that is not the first one does beside its updates. See server.Events."""

    def __init__(self, window: Window, first: ServerLayout, context: RunContext) -> None:
        self._window, self._first, self._context, self._asked = window, first, context, False

    def applying(self) -> None:
        """An update begins."""
        self._context.watchdog.at("applying a gradient", None)

    def applied(self, update: Applied) -> None:
        """An update has been made."""
        self.idle()
        self._context.watchdog.at("waiting for gradients", None)

    def idle(self) -> None:
        """There is nothing to apply: passes a signal on to the first server."""
        if self._context.signals.received is not None and not self._asked:
            self._asked = True
            self._window.replace(0, self._first.word(STOP), SIGNALLED)
