"""Asks for MPI in the memory of GPUs where it would fail, with what stands in for a GPU, and prints the refusals.

argv: "mpi fails", where MPI is to fail on one rank alone, which ends both.
"""

import sys

import tensorflow as tf

from hpc_train.distributed import gpu_memory
from hpc_train.distributed.carrier import collectives_by
from hpc_train.distributed.startup import join_world
from hpc_train.errors import UserError
from tests.gpu import stand_in_for_gpu

world = join_world()
says, whole = gpu_memory.takes_gpu_memory, gpu_memory._Memory
stand_in_for_gpu()
said_for_it = gpu_memory.takes_gpu_memory


class OtherNumbers(whole):
    """On the last rank the results are others than those that MPI has brought."""

    def __init__(self, tensor):
        super().__init__(tensor)
        if not world.is_chief:
            self.tensor = tensor + 1


class NoRoom(whole):
    """The last rank cannot begin."""

    def __init__(self, tensor):
        if not world.is_chief:
            raise MemoryError("no room")
        super().__init__(tensor)


class Fails(whole):
    """The last rank cannot go on once all have begun."""

    def __dlpack__(self, stream=None):
        if not world.is_chief:
            raise BufferError("MPI does not like it")
        return super().__dlpack__(stream)


def refused(memory=whole):
    gpu_memory._Memory = memory
    try:
        collectives_by("mpi-gpu", world)
    except UserError as error:
        print(error)


if sys.argv[1:] == ["mpi fails"]:
    refused(Fails)
    raise AssertionError("both ranks have ended")
refused(OtherNumbers)
refused(NoRoom)
gpu_memory.takes_gpu_memory = says
refused()
gpu_memory.takes_gpu_memory = said_for_it
if not world.is_chief:
    tf.config.list_logical_devices = lambda kind: []
refused()
