"""What stands for `import horovod.tensorflow as hvd`."""

from __future__ import annotations

from typing import Any

from hpc_train.horovod.names import TENSORFLOW, listed, looked_up

__all__ = sorted(TENSORFLOW)


def __getattr__(name: str) -> Any:
    return looked_up("hpc_train.horovod.tensorflow", name, TENSORFLOW)


def __dir__() -> list[str]:
    return listed(TENSORFLOW)
