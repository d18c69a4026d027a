"""What one rank has, given to all: variables and objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpc_train.errors import UserError
from hpc_train.horovod.operations import as_written, sent_from
from hpc_train.horovod.ranks import joined
from hpc_train.horovod.settings import refuse_unused, root_of
from hpc_train.lazy import keras, tf


def of_tensorflow(variable: Any) -> Any:
    """The tf.Variable of one of Keras, or itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


@as_written
def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, process_set: Any = None, inplace: bool = False
) -> None:
    """Gives all ranks the values that rank `root_rank` has in `variables`. Collective.

    Also inside a tf.function. Random states of layers such as Dropout are among a model's `variables`; broadcast, they
    have all ranks drop the same units.

    Args:
        variables: Of Keras or TensorFlow, of any dtype, the same on all ranks; an optimizer has its own once built.
        process_set: Not offered. inplace: makes no difference.

    Raises:
        UserError: The ranks' variables differ in number, shapes or dtypes, which is compared outside of tf.functions;
            something else is among them; or there is no rank of that number.
    """
    where, world = "hvd.broadcast_variables", joined("broadcast_variables")
    refuse_unused(where, process_set=process_set)
    root = root_of(where, root_rank, world.size)
    if callable(variables):
        raise UserError(f"{where}: variables: a function; an optimizer's `variables` are a list in Keras 3")
    targets = [of_tensorflow(variable) for variable in variables]
    for target in targets:
        if not isinstance(target, tf.Variable):
            raise UserError(f"{where}: variables: {type(target).__name__} is not allowed; allowed: variables")
    if world.size == 1:
        return
    if tf.executing_eagerly():  # a rank may trace a function alone
        described = [[v.dtype.name, *map(str, v.shape)] for v in targets]
        _refuse_different(where, world.horovod().allgather_object(described, name=f"{where}.described"))
    for target in targets:
        target.assign(sent_from(world.horovod(), tf.identity(target), root, where))


def _refuse_different(where: str, of_ranks: list[list[list[str]]]) -> None:
    """UserError, on all ranks, where the variables of one are not like those of rank 0."""
    first = of_ranks[0]
    for rank, found in enumerate(of_ranks):
        if len(found) != len(first):
            raise UserError(
                f"{where}: rank 0 has {len(first)} variables and rank {rank} has {len(found)}: build model and "
                "optimizer on all ranks before"
            )
        for place, (one, other) in enumerate(zip(first, found, strict=True)):
            if one != other:
                raise UserError(f"{where}: variable {place} is {' '.join(one)} on rank 0, {' '.join(other)} on {rank}")


def broadcast_object(
    obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = None
) -> Any:
    """The object that rank `root_rank` has, on all ranks; Horovod pickles it. Collective."""
    where, world = "hvd.broadcast_object", joined("broadcast_object")
    refuse_unused(where, session=session, process_set=process_set)
    root = root_of(where, root_rank, world.size)
    return obj if world.size == 1 else world.horovod().broadcast_object(obj, root, name=name or where)


def allgather_object(obj: Any, session: Any = None, name: str | None = None, process_set: Any = None) -> list[Any]:
    """The objects of all ranks, by rank; Horovod pickles them. Collective."""
    where, world = "hvd.allgather_object", joined("allgather_object")
    refuse_unused(where, session=session, process_set=process_set)
    return [obj] if world.size == 1 else list(world.horovod().allgather_object(obj, name=name or where))


def broadcast_global_variables(root_rank: int = 0) -> None:
    """Retired: TensorFlow 2 has no global variables.

    Raises:
        UserError: Always; it names what replaces it.
    """
    raise UserError(
        "hvd.broadcast_global_variables: TensorFlow 2 has no global variables; call "
        "hvd.broadcast_variables(model.variables, root_rank=0), and once more with optimizer.variables; in fit, "
        "hvd.callbacks.BroadcastGlobalVariablesCallback(0) does it"
    )
