"""One rank of allreduce and broadcast, by Horovod and by MPI itself; or of one-sided communication, see windows.py.

    mpirun -np 2 python -m collective.program --operations allreduce --sizes 4 1048576 … --out FILE

FILE grows by one JSON object a line: first what the ranks are, then each size of each operation.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scale.network import RAW

from collective import plan, windows
from collective.rank import ResultFile, Way, missing_room, pattern, take_turns, wrong
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World
from hpc_train.errors import UserError


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", nargs="+", choices=plan.OPERATIONS, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="bytes")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--repeat-secs", type=float, required=True)
    parser.add_argument("--gpu", action="store_true", help="fail where tensors cannot lie on a GPU")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


class HorovodSwitch:
    """Horovod, which runs for some of the ways: its thread takes time from MPI even when there is nothing to do.

    With Horovod's own fusion threshold: Horovod 0.28 crashes where one is set and it is started a second time.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        os.environ.pop("HOROVOD_FUSION_THRESHOLD", None)
        self.hvd = world.horovod()
        self._on = True

    def turn(self, on: bool) -> None:
        """Starts it or shuts it down; collective."""
        if on == self._on:
            return
        if on:
            affinity = os.sched_getaffinity(0)
            self.hvd.init(comm=self._world.comm)
            os.sched_setaffinity(0, affinity)  # which it can shrink, see World.horovod
        else:
            self.hvd.shutdown()
        assert self._world.comm is not None
        self._world.comm.Barrier()
        self._on = on


class Exchanges:
    """The ways to exchange `count` float32 numbers. Collective."""

    def __init__(self, world: World, hvd: Any, device: str, count: int) -> None:
        import tensorflow as tf

        assert world.comm is not None
        self._world, self._comm, self._hvd, self._tf, self._device = world, world.comm, hvd, tf, device
        self._sent, self._received = pattern(count, world.rank + 1), np.zeros(count, np.float32)
        self._total = world.size * (world.size + 1) // 2

    def allreduce(self) -> list[Way]:
        """From 64 KiB on also those that tell what bounds the others."""
        sent, hvd = self._sent, self._hvd
        diagnosed = sent.nbytes >= plan.DIAGNOSED_BYTES
        ways = [self._memcpy(), self._raw(RAW, lambda: self._received)]
        if diagnosed:
            ways.append(self._raw(plan.NEW_MEMORY, lambda: np.empty_like(sent)))
        ways.append(self._tensors(plan.ONE_TENSOR, [sent], hvd.Sum))
        if sent.size >= plan.TENSORS:
            parts = np.array_split(sent, plan.TENSORS)
            ways += [self._tensors(plan.GROUP, parts, hvd.Sum), self._tensors(plan.MEAN, parts, hvd.Average)]
        if diagnosed:
            ways.append(self._raw(plan.BESIDE, lambda: self._received, horovod=True))
        return ways

    def broadcast(self) -> list[Way]:
        """From rank 0."""
        held, is_root = self._received, self._world.rank == 0

        def check() -> int:
            held[:] = self._sent if is_root else 0
            self._comm.Bcast(held, root=0)
            return wrong(held, 1)

        raw = Way(plan.BCAST, lambda: self._comm.Bcast(held, root=0), check)
        return [self._memcpy(), raw, self._tensor_from_root()]

    def _memcpy(self) -> Way:
        def check() -> int:
            np.copyto(self._received, self._sent)
            return wrong(self._received, self._world.rank + 1)

        return Way(plan.MEMCPY, lambda: np.copyto(self._received, self._sent), check)

    def _raw(self, name: str, received: Callable[[], np.ndarray], horovod: bool = False) -> Way:
        """MPI_Allreduce into what `received` gives."""

        def check() -> int:
            array = received()
            array[:] = 0
            self._comm.Allreduce(self._sent, array)
            return wrong(array, self._total)

        return Way(name, lambda: self._comm.Allreduce(self._sent, received()), check, horovod)

    def _tensors(self, name: str, arrays: list[np.ndarray], op: Any) -> Way:
        tf, hvd = self._tf, self._hvd
        with tf.device(self._device):
            tensors = [tf.identity(tf.constant(array)) for array in arrays]

            @tf.function
            def reduce(*given: Any) -> Any:
                return hvd.grouped_allreduce(list(given), op=op)

        factor = self._total / (self._world.size if op == hvd.Average else 1)

        def check() -> int:
            found = np.concatenate([part.numpy() for part in reduce(*tensors)])
            expected = self._sent / np.float32(self._world.rank + 1) * np.float32(factor)
            # A mean is a sum times 1 / n, rounded once.
            return int((~np.isclose(found, expected, rtol=1e-6 if op == hvd.Average else 0, atol=0)).sum())

        return Way(name, self._waited_for(lambda: reduce(*tensors)), check, horovod=True)

    def _tensor_from_root(self) -> Way:
        tf, hvd, rank = self._tf, self._hvd, self._world.rank
        with tf.device(self._device):
            tensor = tf.identity(tf.constant(self._sent if rank == 0 else np.zeros_like(self._sent)))

            @tf.function
            def broadcast(given: Any) -> Any:
                return hvd.broadcast(given, root_rank=0)

        def check() -> int:
            return wrong(broadcast(tensor).numpy(), 1)

        return Way(plan.ONE_TENSOR, self._waited_for(lambda: broadcast(tensor)), check, horovod=True)

    def _waited_for(self, call: Callable[[], Any]) -> Callable[[], object]:
        """On a GPU a call returns before its work is done."""
        if "GPU" not in self._device:
            return call
        synchronise = self._tf.test.experimental.sync_devices

        def run() -> None:
            call()
            synchronise()

        return run


def device_of(hvd: Any, demanded: bool) -> str:
    """Where tensors lie: on the GPU where Horovod has NCCL.

    Raises:
        UserError: A GPU is demanded, and cannot be had.
    """
    import tensorflow as tf

    gpus, nccl = tf.config.list_physical_devices("GPU"), bool(hvd.nccl_built())
    if gpus and nccl:
        return "/GPU:0"
    if demanded:
        missing = "TensorFlow sees no GPU" if not gpus else "this Horovod was built without NCCL"
        raise UserError(f"--gpu: {missing}")
    return "/CPU:0"


def measure_all(args: argparse.Namespace) -> None:
    """All operations and sizes that go through Horovod, and MPI."""
    world = join_world()
    install_excepthook(world)
    assert world.comm is not None, "started without mpirun"
    name = set_up_tensorflow(world)
    switch = HorovodSwitch(world)
    device = world.each(lambda: device_of(switch.hvd, args.gpu))
    nccl = bool(switch.hvd.nccl_built())
    results = ResultFile(world, args.out, device=name if "GPU" in device else "CPU", nccl=nccl)
    for operation in args.operations:
        for nbytes in args.sizes:
            if results.leaves_out([operation], nbytes, missing_room(nbytes, world.local_size)):
                continue
            exchanges = Exchanges(world, switch.hvd, device, nbytes // 4)
            ways = exchanges.allreduce() if operation == "allreduce" else exchanges.broadcast()
            found = take_turns(world.comm, ways, switch.turn, args.rounds, args.repeat_secs)
            results.write(operation=operation, bytes=nbytes, ways=found)
            del exchanges, ways
    switch.turn(True)


def main() -> None:
    args = arguments()
    if set(args.operations) <= set(plan.REDUCTIONS):
        measure_all(args)
    else:
        windows.measure_all(args)


if __name__ == "__main__":
    main()
