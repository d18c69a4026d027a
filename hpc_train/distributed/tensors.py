"""Memory that TensorFlow and numpy share, on a CPU; aligned memory, which that takes."""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from hpc_train.lazy import tf

ALIGNMENT = 64
HUGE_PAGE = 2 << 20
MADV_HUGEPAGE = 14

_LIBC = ctypes.CDLL(None)


def reader_of(variables: Sequence[Any], to_host: bool = False) -> Callable[[], Any]:
    """A function that gives the values of all variables, as tensors that share their memory on a CPU.

    One by one, TensorFlow takes two to four times as long for it.

    Args:
        to_host: Those on a device are copied to the host's memory by the function itself, so that who looks at them
            does not wait for what was dispatched after it.
    """
    resources = [v.value for v in variables]

    def read() -> list[Any]:
        values = [tf.raw_ops.ReadVariableOp(resource=r.handle, dtype=r.dtype) for r in resources]
        if not to_host:
            return values
        with on_host():
            return [tf.identity(value) for value in values]

    compiled: Callable[[], Any] = tf.function(read, autograph=False).get_concrete_function()
    return compiled


def writer_of(variables: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """A function that assigns tensors to all variables; on a CPU these share the tensors' memory from then on.

    One by one, Keras takes four times as long for it.
    """
    resources = [v.value for v in variables]

    def write(tensors: Sequence[Any]) -> None:
        for resource, tensor in zip(resources, tensors, strict=True):
            tf.raw_ops.AssignVariableOp(resource=resource.handle, value=tensor)

    specs = [tf.TensorSpec(r.shape, r.dtype) for r in resources]
    compiled: Callable[[Sequence[Any]], Any] = tf.function(write, autograph=False).get_concrete_function(specs)
    return compiled


def view_of(tensor: Any) -> np.ndarray:
    """The elements of `tensor`, on a CPU without a copy."""
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, BufferError, RuntimeError):  # a dtype that buffers do not know, such as bfloat16
        return np.asarray(tensor.numpy())


def memory_of(tensor: Any) -> np.ndarray:
    """The elements of a new `tensor` on a CPU, to be written before anybody reads them; valid while it is there."""
    view: np.ndarray = np.asarray(memoryview(tensor))
    if not view.size:
        return np.empty_like(view)
    memory = (ctypes.c_uint8 * view.nbytes).from_address(view.ctypes.data)
    return np.ctypeslib.as_array(memory).view(view.dtype).reshape(view.shape)


def in_huge_pages(memory: np.ndarray) -> None:
    """Asks for large pages for what of `memory` was never written to, as numpy does for its own arrays."""
    begin = aligned(memory.ctypes.data, HUGE_PAGE)
    nbytes = memory.ctypes.data + memory.nbytes - begin
    if sys.platform == "linux" and nbytes >= HUGE_PAGE:
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(nbytes), MADV_HUGEPAGE)


def tensor_of(array: np.ndarray) -> Any:
    """A tensor that shares the memory of `array`, which is C-contiguous and aligned to 64 bytes."""
    with on_host():
        if not array.size:
            return tf.zeros(array.shape, array.dtype)
        if array.dtype.kind not in "iuf":  # such as bfloat16, which numpy's side of DLPack does not know
            return tf.bitcast(tensor_of(array.view(f"u{array.dtype.itemsize}")), array.dtype)
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def filled_by(shape: tuple[int, ...], dtype: Any, fill: Callable[[np.ndarray], None]) -> Any:
    """A tensor in memory of TensorFlow's own, into which `fill` writes: a variable made of it needs no other.

    TensorFlow copies a tensor of other memory, as that of `tensor_of`, once the variable's rows are looked up.
    """
    kind = tf.as_dtype(dtype)
    with on_host():
        tensor = tf.raw_ops.Empty(shape=[*shape, kind.size], dtype=tf.uint8)
        if math.prod(shape):
            fill(memory_of(tensor).reshape(-1).view(kind.as_numpy_dtype).reshape(shape))
        return tf.bitcast(tensor, kind)


def on_host() -> AbstractContextManager[Any]:
    """A context in which TensorFlow works in the host's memory."""
    device: AbstractContextManager[Any] = tf.device("CPU:0")
    return device


def dtype_of(variable: Any) -> np.dtype:
    """A Keras variable's dtype as numpy's."""
    found: np.dtype = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
    return found


def is_floating(variable: Any) -> bool:
    """Whether a Keras variable holds floating-point numbers, of 16 bits ones, too."""
    return bool(tf.as_dtype(variable.dtype).is_floating)


def nbytes_of(variable: Any) -> int:
    """Bytes of a Keras variable's elements."""
    return int(np.prod(variable.shape, dtype=np.int64)) * dtype_of(variable).itemsize


def copy_of(tensor: Any) -> Any:
    """A tensor with memory of its own."""
    return tf.constant(np.array(view_of(tensor)))


def aligned(nbytes: int, to: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to whole lines of 64 bytes, or of as many as `to` says."""
    return -(-nbytes // to) * to


def places(nbytes: Sequence[int]) -> tuple[list[int], int]:
    """Aligned offsets for arrays of so many bytes, one after the other, and the bytes they take together."""
    *offsets, end = itertools.accumulate(map(aligned, nbytes), initial=0)
    return offsets, end


def aligned_zeros(nbytes: int) -> np.ndarray:
    """Memory of its own, uint8 `[nbytes]`, aligned to 64 bytes."""
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    shift = -memory.ctypes.data % ALIGNMENT
    return memory[shift : shift + nbytes]
