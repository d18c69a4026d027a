"""Compression: fewer bits on the way between ranks."""

from __future__ import annotations

from typing import Any

from hpc_train.errors import UserError
from hpc_train.lazy import tf


class NoCompression:
    """Tensors are sent as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """What is sent, and what `decompress` is to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The reverse."""
        return tensor


class Float16Compression(NoCompression):
    """Floating tensors are sent, and added, as float16: their sum must stay below 65504."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """As float16, and the dtype that it had."""
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """In the dtype that it had."""
        return tf.cast(tensor, ctx)


class Compression:
    """What `compression` of Horovod's functions may be: one of these, or any object with such two methods."""

    none = NoCompression
    fp16 = Float16Compression


def check_compression(where: str, compression: Any) -> Any:
    """`compression`; UserError where it can neither compress nor decompress."""
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise UserError(
            f"{where}: compression: {compression!r} is not allowed; allowed: hvd.Compression.none, "
            "hvd.Compression.fp16, or an object with compress(tensor) and decompress(tensor, ctx)"
        )
    return compression
