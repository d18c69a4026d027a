"""What stands for `import horovod.keras as hvd` and `import horovod.tensorflow.keras as hvd`."""

from __future__ import annotations

from typing import Any

from hpc_train.horovod.names import KERAS, listed, looked_up

__all__ = sorted(KERAS)


def __getattr__(name: str) -> Any:
    return looked_up("hpc_train.horovod.keras", name, KERAS)


def __dir__() -> list[str]:
    return listed(KERAS)
