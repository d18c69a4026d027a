"""The operations of horovod.keras, whose arguments come in another order than those of horovod.tensorflow."""

from __future__ import annotations

from typing import Any

from hpc_train.horovod import operations
from hpc_train.horovod.compression import Compression
from hpc_train.horovod.settings import Op


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Op | None = None,
    compression: Any = Compression.none,
) -> Any:
    """As hpc_train.horovod.tensorflow.allreduce. Collective."""
    return operations.allreduce(
        value,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """As hpc_train.horovod.tensorflow.allgather. Collective."""
    return operations.allgather(value, name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """As hpc_train.horovod.tensorflow.broadcast. Collective."""
    return operations.broadcast(value, root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: Op | None = Op.Average) -> Any:
    """As hpc_train.horovod.tensorflow.reducescatter. Collective."""
    return operations.reducescatter(value, name=name, op=op)
