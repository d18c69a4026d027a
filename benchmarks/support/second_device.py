"""What stands in for a GPU, in a rank that trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import tensorflow as tf

from hpc_train.distributed import gpu_memory

DEVICE = "/device:CPU:1"


@contextmanager
def second_device() -> Iterator[None]:
    """A second device of the processor, which hpc_train takes for a GPU, whose memory MPI takes."""
    [processor] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
    listed = tf.config.list_logical_devices

    def with_stand_in(kind: str | None = None) -> Any:
        return [SimpleNamespace(name=DEVICE)] if kind == "GPU" else listed(kind)

    with (
        patch.object(tf.config, "list_logical_devices", with_stand_in),
        patch.object(gpu_memory, "takes_gpu_memory", lambda: True),
    ):
        yield
