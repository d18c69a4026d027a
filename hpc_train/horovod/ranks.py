"""Horovod's ranks: joined by `init`, which starts MPI and Horovod where a launcher started several."""

from __future__ import annotations

import os
from typing import Any

from hpc_train.distributed.devices import share_cores
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.horovod.settings import refuse_unused

_world: World | None = None
_ended = False


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the ranks that the launcher started: mpirun, srun, horovodrun or hpc-train launch. Collective.

    A process that no launcher started is rank 0 of 1, and neither MPI nor Horovod is started. Of several, an exception
    that nobody catches ends all ranks, and TensorFlow gets this rank's share of the node's cores where neither
    the program nor TF_NUM_INTRAOP_THREADS says how many. All GPUs of the node stay visible. Further calls do nothing.

    Raises:
        UserError: `comm` or `process_sets` is given, which are not offered; MPI does not let several threads call it;
            it was shut down; or a launcher without MPI started this process.
    """
    global _world
    if comm is not None:
        raise UserError("hvd.init: comm: all ranks that the launcher started take part; leave it out")
    if process_sets:
        refuse_unused("hvd.init", process_set=process_sets)
    if _ended:
        raise UserError("hvd.init: Horovod was shut down in this program, which starts it once: call shutdown() last")
    if _world is not None:
        return
    world = join_world(own_device=False)
    if world.size == 1 and os.environ.get("HOROVOD_SIZE", "1") not in ("", "1"):
        raise UserError(
            "hvd.init: HOROVOD_SIZE says that there are several ranks, but no MPI has started them; start them by "
            "mpirun, or by a horovodrun that was built with MPI (horovodrun --mpi)"
        )
    if world.size > 1:
        install_excepthook(world)
        share_cores(world)
        world.horovod()
    _world = world


def shutdown() -> None:
    """Ends Horovod, at the end of a program; all ranks do. Without it, it ends with the program."""
    global _world, _ended
    if _world is not None and _world.size > 1:
        _world.horovod().shutdown()
        _ended = True
    _world = None


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` not since."""
    return _world is not None


def joined(what: str) -> World:
    """The ranks; UserError before `init`. `what` asks."""
    if _world is None:
        raise UserError(f"hvd.{what}: hvd.init() comes first" if not _ended else f"hvd.{what}: after hvd.shutdown()")
    return _world


def library(what: str) -> Any:
    """Horovod itself; None with one rank, which needs none."""
    world = joined(what)
    return world.horovod() if world.size > 1 else None


def rank() -> int:
    """This rank's number, from 0."""
    return joined("rank").rank


def size() -> int:
    """How many ranks there are."""
    return joined("size").size


def local_rank() -> int:
    """This rank's number on its node, from 0: the number of its GPU."""
    return joined("local_rank").local_rank


def local_size() -> int:
    """How many ranks this node has."""
    return joined("local_size").local_size


def cross_rank() -> int:
    """The number of this node, among those that have a rank of this local rank."""
    return int(_asked("cross_rank", 0))


def cross_size() -> int:
    """How many nodes have a rank of this local rank."""
    return int(_asked("cross_size", 1))


def is_homogeneous() -> bool:
    """Whether all nodes have as many ranks."""
    return bool(_asked("is_homogeneous", True))


def mpi_threads_supported() -> bool:
    """Whether several threads may call MPI, so that mpi4py works beside Horovod; True with one rank."""
    return bool(_asked("mpi_threads_supported", True))


def _asked(name: str, alone: Any) -> Any:
    hvd = library(name)
    return alone if hvd is None else getattr(hvd, name)()


def _of_build(name: str) -> Any:
    def ask() -> Any:
        return _asked(name, False)

    ask.__name__ = ask.__qualname__ = name
    ask.__doc__ = f"Horovod's {name}(), of the Horovod that runs; False with one rank, where none does."
    return ask


mpi_enabled, mpi_built, gloo_enabled, gloo_built, nccl_built, cuda_built, rocm_built, ddl_built, ccl_built = map(
    _of_build,
    (
        "mpi_enabled",
        "mpi_built",
        "gloo_enabled",
        "gloo_built",
        "nccl_built",
        "cuda_built",
        "rocm_built",
        "ddl_built",
        "ccl_built",
    ),
)
