"""Horovod's names for programs of a user's own, working with Keras 3: `import hpc_train.horovod as hvd`.

It has what `hpc_train.horovod.tensorflow` and `hpc_train.horovod.keras` have, which stand for Horovod's modules
`horovod.tensorflow` and `horovod.keras` (`horovod.tensorflow.keras`). Names are imported when they are first used. One
rank needs neither Horovod nor MPI.
"""

from __future__ import annotations

from typing import Any

from hpc_train.horovod.names import KERAS, TENSORFLOW, listed, looked_up

_HOMES = {**KERAS, **TENSORFLOW}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return looked_up("hpc_train.horovod", name, _HOMES)


def __dir__() -> list[str]:
    return listed(_HOMES)
