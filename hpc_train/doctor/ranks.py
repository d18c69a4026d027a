"""What `hpc-train doctor` runs on two ranks: `python -m hpc_train.doctor.ranks allreduce`, or `one-sided`."""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.distributed.carrier import NAMES, carrier_of, collectives_by
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.excepthook import report_error
from hpc_train.distributed.gpu_memory import takes_gpu_memory
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.silence import without_chatter
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World
from hpc_train.doctor.tools import emit
from hpc_train.errors import UserError
from hpc_train.outcome import EXIT_BAD_INPUT

LARGE_BYTES = 8 << 20
TIMES, LARGE_TIMES = 40, 8
_WORD = 8


def allreduce(world: World) -> None:
    """Averages by what a job would that does not say, on the CPU, then between two GPUs where NCCL can. Collective."""
    set_up_tensorflow(world)
    with without_chatter():
        import tensorflow as tf

        carrier = carrier_of(world)
        collectives = collectives_by(carrier, world)
    reduce = tf.function(lambda tensor: collectives.allreduce([tensor], "mean", gradient=False)[0], autograph=False)

    def measure(device: str, values: int, times: int) -> float:
        with tf.device(device):
            tensor = tf.fill([values], float(world.rank + 1))
            mean = reduce(tensor).numpy()  # traced here, and what is set up at the first call
            expected = (world.size + 1) / 2
            if not np.all(mean == expected):
                raise UserError(
                    f"rank {world.rank}: an allreduce by {NAMES[carrier]} gave {mean.min()}, not {expected}"
                )
            return _median(lambda: reduce(tensor).numpy(), times)

    small, large = measure("CPU", 1, TIMES), measure("CPU", LARGE_BYTES // 4, LARGE_TIMES)
    libraries = sorted(set(re.findall(r"/\S*/libmpi(?:ch)?\.so\S*", Path("/proc/self/maps").read_text())))
    hosts = len(set(world.all_gather(world.host)))
    _emit_once(world, carrier=NAMES[carrier], takes_gpu_memory=takes_gpu_memory())
    _emit_once(world, allreduce_secs=small, large_bytes=LARGE_BYTES, large_secs=large, hosts=hosts, libraries=libraries)
    device = [world.host, os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    devices = world.all_gather(device if tf.config.list_physical_devices("GPU") else [])
    own = all(devices) and len({tuple(device) for device in devices}) == world.size
    if carrier == "horovod" and own and world.horovod().nccl_built():
        _emit_once(world, gpu_tried=True)
        _emit_once(world, gpu_secs=measure("GPU", LARGE_BYTES // 4, LARGE_TIMES))


def one_sided(world: World) -> None:
    """Writes to another rank's memory, reads it back and counts up there, as asynchronous training does. Collective."""
    assert world.comm is not None
    count, scratch, place = 0, _WORD, 64
    sent = np.random.default_rng(0).integers(0, 256, LARGE_BYTES, np.uint8)
    with Window(world.comm, place + LARGE_BYTES) as window:
        window.barrier()
        window.add(0, count, 1)
        if world.rank == 1:
            window.put(sent, 0, place)
            window.flush(0)
            found = np.zeros_like(sent)
            window.get(found, 0, place)
            window.flush(0)
            if (found != sent).any():
                raise UserError("rank 1 wrote to rank 0's memory and read back something else")
        window.barrier()
        window.sync()
        if world.rank == 0:
            there = int(window.memory[count : count + _WORD].view(np.int64)[0])
            if there != world.size or (window.memory[place:] != sent).any():
                raise UserError(f"rank 0 sees something else than rank 1 has written ({there} of {world.size} counted)")
        if world.rank == 1:
            word = sent[:_WORD].copy()

            def put() -> None:
                window.put(word, 0, scratch)
                window.flush(0)

            secs = {"put_secs": _median(put, TIMES), "get_secs": _median(lambda: window.words(0, scratch), TIMES)}
            secs["add_secs"] = _median(lambda: window.add(0, scratch, 1), TIMES)
            emit(**secs, shared=window.shared)
        window.barrier()


def _median(action: Callable[[], Any], times: int) -> float:
    secs = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        secs.append(time.perf_counter() - start)
    return statistics.median(secs)


def _emit_once(world: World, **results: object) -> None:
    if world.is_chief:
        emit(**results)


def main() -> None:
    """Runs the part that the first argument names."""
    part = sys.argv[1]
    try:
        world = join_world("multiple" if part == "allreduce" else "serialized")
    except UserError as error:
        sys.exit(_refuse(error))
    if world.size < 2:
        sys.exit(_refuse("mpirun started two ranks, but each is alone: mpirun and mpi4py are of different MPIs"))
    try:
        (allreduce if part == "allreduce" else one_sided)(world)
    except Exception as error:
        sys.exit(report_error(world, error))


def _refuse(error: object) -> int:
    print(f"hpc-train: error: {error}", file=sys.stderr)
    return EXIT_BAD_INPUT


if __name__ == "__main__":
    main()
