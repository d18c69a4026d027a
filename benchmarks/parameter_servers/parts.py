"""What a server holds in the measurements: plain numpy that is published and no more, or variables of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpc_train.distributed.parameter_server.mailboxes import Mailbox
from hpc_train.distributed.parameter_server.partition import Partition
from parameter_servers.settings import LEARNING_RATE, MOMENTUM

if TYPE_CHECKING:
    from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard


class PlainShard:
    """Bytes that are published as they are; no optimizer.

    The last number of a gradient becomes the last of the parameters, so that the worker sees its own come back.
    """

    def __init__(self, partition: Partition, server: int) -> None:
        self.memory = np.zeros(partition.nbytes_of(server), np.uint8)

    def bind(self, boxes: Sequence[Mailbox]) -> None:
        """Nothing to do."""

    def apply(self, boxes: Sequence[Mailbox], rate: float) -> None:
        """Takes over the last number."""
        last = boxes[-1].gradients[-1]
        assert isinstance(last, np.ndarray)
        self.memory[-4:] = last[-1:].view(np.uint8)

    def write_parameters(self, into: np.ndarray) -> None:
        """Copies all of it."""
        np.copyto(into, self.memory)

    def write_state(self, into: np.ndarray) -> None:
        """Nothing to do."""


def sgd_shard(partition: Partition, server: int) -> OptimizerShard:
    """The variables of `partition` with Keras's SGD and momentum."""
    import keras

    from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard

    variables = [keras.Variable(np.zeros(v.shape, v.dtype), dtype="float32") for v in partition.variables]
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    return OptimizerShard(variables, optimizer, partition, server, [True] * len(variables))
