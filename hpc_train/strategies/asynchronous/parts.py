"""How an asynchronous job is divided: what servers and workers alike know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpc_train.distributed.optimizer_variables import OptimizerVariables
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.parameter_server.window_layout import SIGNALS, ServerLayout
from hpc_train.distributed.partition import Partition
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.tensors import nbytes_of, places
from hpc_train.outcome import STOP_CODES


@dataclass(frozen=True)
class AsyncParts:
    """The parameters divided among the servers.

    Attributes:
        layouts: Of each server's part of the window.
        carried: Variables that workers send along with gradients. trainable: those that gradients are for.
        optimizer: The variables of the model's optimizer, as a checkpoint has them.
    """

    roles: Roles
    partition: Partition
    layouts: Sequence[ServerLayout]
    window: Window
    carried: Sequence[Any]
    trainable: Sequence[Any]
    optimizer: OptimizerVariables

    def note_signal(self, name: str) -> None:
        """Lets the chief know that this rank has received the signal called `name`."""
        self.window.replace(0, self.layouts[0].word(SIGNALS + list(STOP_CODES).index(name)), 1)

    def noted_signal(self) -> str | None:
        """The signal that a rank has let the chief know of; of several the first of STOP_CODES. For the chief."""
        words = self.window.words(0, self.layouts[0].word(SIGNALS), len(STOP_CODES))
        return next((name for name, word in zip(STOP_CODES, words, strict=True) if word), None)


def carried_places(carried: Sequence[Any]) -> tuple[list[int], int]:
    """Where each of the carried variables lies in a mailbox, and the bytes that they take together."""
    return places([nbytes_of(variable) for variable in carried])
