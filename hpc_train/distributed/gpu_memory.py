"""Collectives by an MPI that takes pointers to the memory of GPUs (CUDA-aware): gradients stay there."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from hpc_train.distributed.collectives import Collectives, OneRank, Op
from hpc_train.distributed.excepthook import report_error
from hpc_train.distributed.mpi import MpiCollectives
from hpc_train.distributed.world import World
from hpc_train.errors import RankError, UserError
from hpc_train.lazy import tf

if TYPE_CHECKING:
    from mpi4py import MPI

KEY = "run.allreduce: mpi-gpu"
NOT_TAKEN = "has an MPI that says that it does not take the memory of GPUs (CUDA-aware)"
FAILS = "fails in the first exchange"
OTHERWISE = "take run.allreduce: mpi, which goes through the host"
TRIALS, TRIAL_SIZES, TRIAL_MODULUS = 4, (3, 1 << 20), 8
"""What is added up before anything else is: a small message and one of 4 MiB, of whole numbers below the modulus."""
_CPU, _CUDA = 1, 2
"""As DLPack numbers them."""

_of_worlds: WeakKeyDictionary[World, GpuCollectives] = WeakKeyDictionary()


def takes_gpu_memory() -> bool:
    """Whether MPI says that it takes pointers to CUDA's memory; asked after MPI has been started. Local.

    Open MPI and MPICH have a function for it that is no part of the standard; who has none is taken to say no. Open MPI
    4 says only how it was built: whether it is switched on is in a variable of its own.
    """
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)  # names are looked for in MPI's libraries, too
    ask = getattr(library, "MPIX_Query_cuda_support", None)
    if ask is None or not ask():
        return False
    try:
        return ctypes.c_bool.in_dll(library, "opal_cuda_support").value
    except ValueError:
        return True


def collectives_of(world: World) -> Collectives:
    """Those of all ranks of `world`, each of which has a GPU, but that a single rank needs none. Collective.

    An MPI that fails while ranks exchange for the first time ends all of them.

    Raises:
        UserError: A rank has no GPU, its MPI does not take the memory of one, several threads must not call it at once,
            or the first sums, which are known, are wrong.
    """
    if world.comm is None or world.size == 1:
        return OneRank()
    if world not in _of_worlds:
        world.check_threads(KEY)
        device = world.each(lambda: _usable_gpu(world))
        found = GpuCollectives(world.comm.Dup(), "mpi", device)
        problem = _problem_of(found, world)
        world.each(lambda: _refuse(world, problem))
        _of_worlds[world] = found
    return _of_worlds[world]


def _refusal(world: World, problem: str) -> UserError:
    return UserError(f"{KEY}: rank {world.rank + world.offset} on {world.host} {problem}; {OTHERWISE}")


def _refuse(world: World, problem: str | None) -> None:
    if problem is not None:
        raise _refusal(world, problem)


def _usable_gpu(world: World) -> str:
    """The name of this rank's GPU for TensorFlow."""
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        _refuse(world, "has no GPU that TensorFlow uses")
    if not takes_gpu_memory():
        _refuse(world, NOT_TAKEN)
    return str(gpus[0].name)


def _problem_of(collectives: GpuCollectives, world: World) -> str | None:
    """What is wrong with sums of what the device has only just computed; None: nothing, to the bit. Collective.

    All ranks make all trials, or none of them goes on.
    """

    def computed(numbers: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.device(collectives.device):
            own = [tf.math.floormod(some + collectives.rank, TRIAL_MODULUS) for some in numbers]
        return collectives.allreduce(own, gradient=False)

    added_up = tf.function(computed, autograph=False)
    numbers = [np.arange(size, dtype=np.float32) for size in TRIAL_SIZES]
    due = [sum((some + rank) % TRIAL_MODULUS for rank in range(collectives.ranks)) for some in numbers]
    with tf.device(collectives.device):
        given = [tf.constant(some) for some in numbers]
    wrong = False
    for _ in range(TRIALS):
        try:
            found = [tensor.numpy() for tensor in added_up(given)]
        except tf.errors.OpError as error:
            failure = collectives.failure
            if collectives.failed_in_mpi or failure is None:  # the others may wait for this one for ever
                raise SystemExit(report_error(world, _refusal(world, f"{FAILS}: {failure or error.message}"))) from None
            own = f"{FAILS}: {failure}" if failure.__cause__ is not None else None
            return own if world.first(own) is not None else f"{FAILS}: {failure}"
        wrong |= not all(map(np.array_equal, found, due))
    return "gets wrong sums of what is in the memory of GPUs" if wrong else None


class GpuCollectives(MpiCollectives):
    """As MpiCollectives, but what `allreduce` adds up stays on the device. All else goes through the host.

    Before MPI reads a tensor, all that the device was given to do is over; MPI's calls return when theirs is. So the
    streams of TensorFlow and of MPI need not know of each other.

    Args:
        device: Of TensorFlow; one whose memory MPI takes.

    Attributes:
        failed_in_mpi: Whether an exchange has failed after the ranks had agreed upon it.
    """

    def __init__(self, comm: MPI.Intracomm, label: str, device: str) -> None:
        super().__init__(comm, label)
        self.device, self.failed_in_mpi = device, False

    @property
    def failure(self) -> RankError | None:
        """Why nothing is exchanged any more."""
        return self._turn.failure

    def _like(self, comm: MPI.Intracomm, label: str) -> MpiCollectives:
        return GpuCollectives(comm, label, self.device)

    def _summed(self, name: str, messages: list[list[tf.Tensor]], op: Op) -> list[tf.Tensor]:
        if not all(one[0].dtype.is_floating for one in messages):  # TensorFlow keeps whole numbers of GPUs on the host
            return super()._summed(name, messages, op)
        with tf.device(self.device):
            sent = [
                tf.identity(one[0]) if len(one) == 1 else tf.concat([tf.reshape(tensor, [-1]) for tensor in one], 0)
                for one in messages
            ]
        found = self._exchanged(name, sent) if sent else []
        with tf.device(self.device):
            return [message * (1 / self.ranks) for message in found] if op == "mean" else found

    def _exchanged(self, name: str, sent: list[tf.Tensor]) -> list[tf.Tensor]:
        count = len(sent)

        def ready(*tensors: tf.Tensor) -> list[_Memory]:
            with tf.device(self.device):
                tf.raw_ops.SyncDevice()
            _enter_context(self.device)
            return [_Memory(tensor) for tensor in tensors]

        def reduce(*memories: _Memory) -> list[tf.Tensor]:
            try:
                for given, memory in zip(memories[:count], memories[count:], strict=True):
                    self._comm.Allreduce(given, memory)
            except Exception as error:  # TensorFlow makes an error of its own of it
                self.failed_in_mpi = True
                self._turn.failure = RankError(f"MPI cannot exchange {name} in the memory of GPUs: {error}")
                raise self._turn.failure from None
            return [memory.tensor for memory in memories[count:]]

        run = self._in_turn(name, reduce, ready)
        with tf.device("CPU"), tf.control_dependencies(sent), self._turn.taken() as over:
            with tf.device(self.device):
                memory = [tf.raw_ops.Empty(shape=tf.shape(tensor), dtype=tensor.dtype) for tensor in sent]
                found: list[tf.Tensor]
                if tf.executing_eagerly():
                    found = run(*sent, *memory)
                    return found
                found = tf.py_function(run, [*sent, *memory], [tensor.dtype for tensor in sent])
            over(found[0])
        return [  # of a py_function TensorFlow makes gradients by itself, which nobody is to ask for
            tf.ensure_shape(tf.stop_gradient(tensor), given.shape) for tensor, given in zip(found, sent, strict=True)
        ]


class _Memory:
    """The memory of a tensor, which mpi4py takes by DLPack, once.

    A tensor itself it does not take: it asks for a stream, and for a newer version of DLPack than TensorFlow has.
    """

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor, self._capsule = tensor, tf.experimental.dlpack.to_dlpack(tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        device = tf.DeviceSpec.from_string(self.tensor.backing_device)
        return (_CUDA if device.device_type == "GPU" else _CPU), device.device_index

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self._capsule


def _enter_context(device: str) -> None:
    """Makes the CUDA context of `device` that of this thread, where it has none: MPI copies in it.

    TensorFlow uses the primary context of a GPU (CUDA driver API, "Primary Context Management").
    """
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type != "GPU":
        return
    current = ctypes.c_void_p()
    _succeeded("cuCtxGetCurrent", _driver().cuCtxGetCurrent(ctypes.byref(current)))
    if not current.value:
        physical = tf.config.get_visible_devices("GPU")[spec.device_index].name
        number = tf.DeviceSpec.from_string(physical.replace("physical_", "")).device_index
        _succeeded("cuCtxSetCurrent", _driver().cuCtxSetCurrent(_primary_context(number)))


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UserError(f"{KEY}: CUDA's driver cannot be loaded: {error}; {OTHERWISE}") from None


@functools.cache
def _primary_context(number: int) -> ctypes.c_void_p:
    """Of CUDA's GPU `number`, kept until the process ends."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _succeeded("cuDeviceGet", _driver().cuDeviceGet(ctypes.byref(device), number))
    _succeeded("cuDevicePrimaryCtxRetain", _driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    return context


def _succeeded(what: str, code: int) -> None:
    if code:
        raise UserError(f"{KEY}: CUDA's {what} failed with code {code}; {OTHERWISE}")
