"""What the ranks of a model group exchange inside a layer: f and g of Megatron-LM.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
arXiv:1909.08053, section 3. All ranks of a group compute the same loss of the same rows; a gradient is that of this
one loss, not of the sum over ranks, so it is whole where an activation is whole, and a part where that is a part.
"""

from __future__ import annotations

from typing import Any

from hpc_train.distributed.collectives import Collectives
from hpc_train.distributed.exchange import groups
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import placement
from hpc_train.errors import UserError
from hpc_train.lazy import tf


def entered(*tensors: Any) -> list[Any]:
    """f: whole activations on their way into divided layers, as they are; gradients are summed over the model axis.

    Collective in the backward pass; called in a step, or where nothing is exchanged (see `placed`).

    Raises:
        UserError: A divided model is called outside of training and evaluation.
    """
    model = _model_axis()
    return list(tensors) if model is None else _enter(model, *tensors)


def reduced(tensor: Any) -> Any:
    """g: the sum over the model axis of what divided layers give, whole on all ranks; its gradient is as it is.

    Collective, and raises, as `entered`.
    """
    model = _model_axis()
    return tensor if model is None else _reduce(model, tensor)[0]


def gathered(tensor: Any, axis: int, mesh: Mesh) -> Any:
    """The parts of all ranks of the model axis along `axis`, each of one width, whole on all; collective as `reduced`.

    Its gradient is whole, too, of which a rank takes its part. How many rows a batch has need not be known before.
    """
    model = _model_axis()
    return tf.concat([tensor] * mesh.model, axis) if model is None else _gather(model, tensor, axis)


def part_of(tensor: Any, axis: int, mesh: Mesh) -> Any:
    """This rank's part along `axis`, the last one's end cut evenly, of a whole activation; collective as `entered`."""
    (tensor,) = entered(tensor)
    return tf.split(tensor, mesh.model, axis)[mesh.model_index]


def _model_axis() -> Collectives | None:
    found = groups()
    if found is not None:
        return found.model
    if placement() is not None:
        return None
    raise UserError(
        "a model whose layers are divided among ranks (run.mesh) is called outside of a step: hooks, callbacks and "
        "serving functions cannot call it; build the model again without a mesh, from a checkpoint or an export"
    )


def _enter(model: Collectives, *tensors: Any) -> list[Any]:
    entering: list[Any] = model._differentiable(
        "enter",
        lambda name, *given: [tf.identity(tensor) for tensor in given],
        lambda inner, *by: _reduce(inner, *map(tf.convert_to_tensor, by)),
        *tensors,
    )
    return entering


def _reduce(model: Collectives, *tensors: Any) -> list[Any]:
    sums: list[Any] = model._differentiable(
        "reduce",
        lambda name, *given: model._allreduce(name, list(given), "sum"),
        lambda inner, *by: _enter(inner, *map(tf.convert_to_tensor, by)),
        *tensors,
    )
    return sums


def _gather(model: Collectives, tensor: Any, axis: int) -> Any:
    def forward(name: str, given: Any) -> Any:
        flat = model._allgather(name, tf.reshape(given, [-1]), None)
        parts = tf.unstack(tf.reshape(flat, [model.ranks, *tf.unstack(tf.shape(given))]))
        for part in parts:
            part.set_shape(given.shape)
        return tf.concat(parts, axis)

    def backward(inner: Collectives, by: Any) -> Any:
        return tf.split(_enter(inner, tf.convert_to_tensor(by))[0], model.ranks, axis)[model.rank]

    return model._differentiable("gather", forward, backward, tensor)
