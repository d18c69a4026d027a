"""The devices of a rank: counted before CUDA starts, and set up for TensorFlow."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_train.distributed.silence import without_chatter
from hpc_train.lazy import tf

if TYPE_CHECKING:
    from hpc_train.distributed.world import World


def nvidia_device_count() -> int:
    """GPUs of this node, counted without starting CUDA."""
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def open_gpus(folder: Path = Path("/dev")) -> list[str]:
    """GPUs of this node that this process may open: a scheduler may hide others by a cgroup, or have them left out."""
    return sorted(path.name for path in folder.glob("nvidia[0-9]*") if os.access(path, os.R_OK | os.W_OK))


def set_up_tensorflow(world: World) -> str:
    """Gives TensorFlow this rank's threads and lets GPU memory grow. Local; returns the device's name.

    A program that has used TensorFlow already has fixed its threads, which is left as it is.
    """
    with without_chatter():
        gpus = tf.config.list_physical_devices("GPU")
    try:
        if "TF_NUM_INTRAOP_THREADS" not in os.environ:
            tf.config.threading.set_intra_op_parallelism_threads(world.cores)
        if "TF_NUM_INTEROP_THREADS" not in os.environ:
            # By default as many as the machine has cores: operations of this rank would run on other ranks' cores.
            tf.config.threading.set_inter_op_parallelism_threads(world.cores)
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        return f"{'GPU' if gpus else 'CPU'} (TensorFlow was already running)"
    if not gpus:
        return "CPU"
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
    return f"{name} {os.environ.get('CUDA_VISIBLE_DEVICES', '0')}"


def share_cores(world: World) -> None:
    """Gives TensorFlow this rank's threads, where neither the program nor the environment has said how many. Local."""
    threads = tf.config.threading
    try:
        if "TF_NUM_INTRAOP_THREADS" not in os.environ and not threads.get_intra_op_parallelism_threads():
            threads.set_intra_op_parallelism_threads(world.cores)
        if "TF_NUM_INTEROP_THREADS" not in os.environ and not threads.get_inter_op_parallelism_threads():
            threads.set_inter_op_parallelism_threads(world.cores)
    except RuntimeError:
        return  # TensorFlow was already running


def peak_memory() -> dict[str, float]:
    """Bytes that this rank has held at most: `memory`, resident in the host's, and `device_memory` of its GPU. Local.

    Of a GPU it is what TensorFlow has given to tensors, without what it keeps in reserve.
    """
    found = {"memory": float(_peak_resident_bytes())}
    if tf.config.list_logical_devices("GPU"):
        with suppress(ValueError):  # what stands in for a GPU does not tell
            found["device_memory"] = float(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    return found


def _peak_resident_bytes() -> int:
    with suppress(OSError, ValueError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):  # unlike ru_maxrss it is of this program alone, not of the one that it was
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_xla() -> bool:
    """Whether a function is traced now that XLA compiles. Local."""
    from tensorflow.python.ops import control_flow_util  # nothing public tells

    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
