"""Horovod's operations on tensors, which may be variables of Keras: allreduce, allgather, broadcast and the others.

All are collective: all ranks call them in the same order, in a tf.function or outside. One rank gets back what it
gives. Gradients are Horovod's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hpc_train.distributed.collectives import call_name
from hpc_train.errors import UserError
from hpc_train.horovod.compression import Compression, check_compression
from hpc_train.horovod.ranks import joined, library
from hpc_train.horovod.settings import OF_SLICES, Op, op_of, refuse_unused, root_of
from hpc_train.lazy import keras, tf

Tensors = list[Any]
SCATTERED = ("int32", "int64", "float16", "bfloat16", "float32", "float64")
ADDED = ("uint8", "int8", *SCATTERED)
SENT = (*ADDED, "uint16", "int16", "uint32", "uint64", "bool")
"""What can be reduced over ranks and scattered, reduced, or only sent."""
Function = TypeVar("Function", bound=Callable[..., Any])


def as_written(function: Function) -> Function:
    """Keeps AutoGraph from rewriting a function, and what it calls, where a tf.function of the user calls it."""
    kept: Function = tf.autograph.experimental.do_not_convert(function)
    return kept


def raw(value: Any) -> Any:
    """The tensor of a value: of a variable of Keras or TensorFlow, an array, a number. IndexedSlices stay."""
    if isinstance(value, tf.IndexedSlices):
        return value
    if isinstance(value, keras.Variable):
        value = value.value
    tensor = tf.convert_to_tensor(value)
    return tensor if tf.executing_eagerly() else tf.identity(tensor)  # Horovod wants the names of those of a graph


@as_written
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = None,
    ignore_name_scope: bool = False,
) -> Any:
    """`tensor` of all ranks, reduced by `op`: the same on all. tf.IndexedSlices become those of all ranks.

    Args:
        tensor: Of one shape and dtype on all ranks.
        average: That of earlier versions; give `op`.
        compression: How it is sent (Compression).
        op: Average (the default), Sum, Min, Max, Product or Adasum; of IndexedSlices Average or Sum.
        prescale_factor, postscale_factor: It is multiplied by them before and afterwards.
        name: Names the operation, the same on all ranks. ignore_name_scope: without TensorFlow's name scope.
        device_dense, device_sparse, process_set: Not offered.

    Raises:
        UserError: An argument that is not allowed.
    """
    where = "hvd.allreduce"
    refuse_unused(where, device_dense=device_dense, device_sparse=device_sparse, process_set=process_set)
    scale = (prescale_factor, postscale_factor)
    chosen = op_of(where, op, average=average)
    return _reduced(where, [raw(tensor)], chosen, check_compression(where, compression), scale, name)[0]


@as_written
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Tensors:
    """`allreduce` of several tensors at once, which may differ in dtype; arguments as there."""
    where = "hvd.grouped_allreduce"
    refuse_unused(where, device_dense=device_dense, device_sparse=device_sparse, process_set=process_set)
    scale = (prescale_factor, postscale_factor)
    chosen, given = op_of(where, op, average=average), [raw(tensor) for tensor in tensors]
    return _reduced(where, given, chosen, check_compression(where, compression), scale, name)


def _reduced(where: str, tensors: Tensors, op: Op, compression: Any, scale: Any, name: str | None) -> Tensors:
    joined(where.removeprefix("hvd."))
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors) and op not in OF_SLICES:
        raise UserError(f"{where}: op: hvd.{op.name} is not for tf.IndexedSlices: convert them by tf.convert_to_tensor")
    return reduced(name or where, tensors, op, compression, *scale)


def reduced(
    label: str, tensors: Tensors, op: Op, compression: Any = Compression.none, before: float = 1.0, after: float = 1.0
) -> Tensors:
    """Tensors of all ranks reduced, each multiplied by `before` and `after`; those of one dtype go together.

    Args:
        label: What the operations' names begin with. tensors: as `raw` returns them.
    """
    hvd, results = library("allreduce"), list(tensors)
    slices = [place for place, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [place for place in range(len(tensors)) if place not in set(slices)]
    for place in slices:
        results[place] = _reduced_slices(hvd, label, tensors[place], op, before * after)
    for place in slices:
        _check_dtype(label, tensors[place].values.dtype, ADDED)
    if hvd is None:
        for place in dense:
            _check_dtype(label, tensors[place].dtype, ADDED)
            results[place] = tensors[place] if before * after == 1 else _times(tensors[place], before * after)
        return results
    sent = {place: compression.compress(_added_as(tensors[place])) for place in dense}
    for dtype in dict.fromkeys(tensor.dtype for tensor, _ in sent.values()):  # Horovod wants one in a group
        _check_dtype(label, dtype, ADDED)
        places = [place for place in dense if sent[place][0].dtype == dtype]
        given = [sent[place][0] for place in places]
        scaling = {"prescale_factor": float(before), "postscale_factor": float(after)}
        if op is Op.Adasum:  # Horovod's group of them fails
            got = [hvd.allreduce(t, op=op, **scaling, **_by(f"{label}.adasum")) for t in given]
        else:
            got = hvd.grouped_allreduce(given, op=op, **scaling, **_by(f"{label}.{dtype.name}"))
        for place, tensor in zip(places, got, strict=True):
            result = tf.cast(compression.decompress(tensor, sent[place][1]), tensors[place].dtype)
            result.set_shape(tensors[place].shape)
            results[place] = result
    return results


def _reduced_slices(hvd: Any, label: str, given: tf.IndexedSlices, op: Op, factor: float) -> tf.IndexedSlices:
    """The sum of IndexedSlices is all ranks' slices."""
    values, indices = given.values, given.indices
    if hvd is not None:
        factor = factor / hvd.size() if op is Op.Average else factor
        values = _as(values.dtype, hvd.allgather(_sent_as(values), **_by(f"{label}.values")))
        indices = hvd.allgather(indices, **_by(f"{label}.indices"))
    return tf.IndexedSlices(values if factor == 1 else _times(values, factor), indices, given.dense_shape)


@as_written
def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None) -> Any:
    """All ranks' tensors, one below the other by rank; they may differ in their number of rows (dimension 0)."""
    return _gathered("hvd.allgather", [tensor], name, process_set)[0]


@as_written
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None
) -> Tensors:
    """`allgather` of several tensors."""
    return _gathered("hvd.grouped_allgather", tensors, name, process_set)


def _gathered(where: str, tensors: Sequence[Any], name: str | None, process_set: Any) -> Tensors:
    def gather(hvd: Any, tensor: Any) -> Any:
        return _as(tensor.dtype, hvd.allgather(_sent_as(tensor), **_by(name or where)))

    return _each(where, tensors, gather, SENT, process_set=process_set)


@as_written
def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None
) -> Any:
    """The tensor of rank `root_rank`, on all ranks; of one shape and dtype on all."""
    root = root_of("hvd.broadcast", root_rank, joined("broadcast").size)

    def send(hvd: Any, given: Any) -> Any:
        return sent_from(hvd, given, root, name or "hvd.broadcast")

    return _each("hvd.broadcast", [tensor], send, SENT, process_set=process_set)[0]


def sent_from(hvd: Any, tensor: Any, root: int, label: str) -> Any:
    """A tensor from rank `root`, by Horovod."""
    _check_dtype(label, tensor.dtype, SENT)
    received = _as(tensor.dtype, hvd.broadcast(_sent_as(tensor), root, **_by(label)))
    received.set_shape(tensor.shape)
    return received


@as_written
def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None
) -> Any:
    """What all ranks have for this one, one below the other by rank.

    Args:
        tensor: Its rows for rank 0, 1, … one below the other.
        splits: How many rows each rank gets, int32 [ranks]; None: all as many.

    Returns:
        The rows received; with `splits` also how many came from each rank, int32 [ranks].
    """
    where = "hvd.alltoall"

    def exchange(hvd: Any, given: Any) -> Any:
        found = hvd.alltoall(_sent_as(given), splits=splits, **_by(name or where))
        return _as(given.dtype, found) if splits is None else (_as(given.dtype, found[0]), found[1])

    found = _each(where, [tensor], exchange, SENT, process_set=process_set)[0]
    alone = joined("alltoall").size == 1
    return (found, tf.cast(tf.convert_to_tensor(splits), tf.int32)) if alone and splits is not None else found


@as_written
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Op | None = Op.Average,
    name: str | None = None,
    process_set: Any = None,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of `tensor` (of one shape on all ranks) reduced by Average or Sum.

    Where rows do not divide by the number of ranks, each of the first ranks has one more.
    """
    return grouped_reducescatter(
        [tensor], device_dense, compression, op, name, process_set, ignore_name_scope, prescale_factor, postscale_factor
    )[0]


@as_written
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Op | None = Op.Average,
    name: str | None = None,
    process_set: Any = None,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensors:
    """`reducescatter` of several tensors; arguments as there."""
    where = "hvd.reducescatter"
    chosen, packing = op_of(where, op, OF_SLICES), check_compression(where, compression)
    scale = {"prescale_factor": float(prescale_factor), "postscale_factor": float(postscale_factor)}

    def reduce(hvd: Any, given: Any) -> Any:
        sent, context = packing.compress(_added_as(given))
        got = hvd.reducescatter(sent, op=chosen, **scale, **_by(name or where))
        return tf.cast(packing.decompress(got, context), given.dtype)

    found = _each(where, tensors, reduce, SCATTERED, device_dense=device_dense, process_set=process_set)
    factor = prescale_factor * postscale_factor
    return [_times(one, factor) for one in found] if joined(where).size == 1 and factor != 1 else found


@as_written
def join() -> Any:
    """Says that this rank has no more batches, and waits until all ranks say so; returns the last one's number.

    Until then it takes part in the allreduces of the others with zeros; an Average still divides by the number of all.
    Only eager steps and tf.functions whose operations are named alike can go on without a rank.
    """
    hvd = library("join")
    return tf.constant(0) if hvd is None else hvd.join()


def _each(
    where: str, tensors: Sequence[Any], action: Callable[[Any, Any], Any], allowed: Sequence[str], **unused: Any
) -> Tensors:
    refuse_unused(where, **unused)
    hvd, given = library(where.removeprefix("hvd.")), [raw(tensor) for tensor in tensors]
    for tensor in given:
        _check_dtype(where, tensor.dtype, allowed)
    return given if hvd is None else [action(hvd, tensor) for tensor in given]


def _by(label: str) -> dict[str, Any]:
    """In a graph, a name of its own for each call; outside one operation ends before the next begins."""
    name = label if tf.executing_eagerly() else call_name(label, "call")
    return {"name": name.replace("/", "."), "ignore_name_scope": True}


def _check_dtype(where: str, dtype: Any, allowed: Sequence[str]) -> None:
    """UserError, on one rank as on many, where Horovod has no such operation for tensors of `dtype`."""
    if dtype.name not in allowed:
        raise UserError(f"{where}: {dtype.name} is not allowed; allowed: {', '.join(allowed)}; tf.cast it before")


def _times(tensor: Any, factor: float) -> Any:
    return tensor * tf.cast(factor, tensor.dtype)


_SENT_AS = {"bfloat16": "float16", "uint32": "int32", "uint64": "int64"}
"""What Horovod does not know travels as bits of what it knows."""


def _added_as(tensor: Any) -> Any:
    """Horovod cannot add bfloat16."""
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


def _sent_as(tensor: Any) -> Any:
    other = _SENT_AS.get(tensor.dtype.name)
    return tf.bitcast(tensor, other) if other else tensor


def _as(dtype: Any, tensor: Any) -> Any:
    return tf.bitcast(tensor, dtype) if tensor.dtype != dtype else tensor
