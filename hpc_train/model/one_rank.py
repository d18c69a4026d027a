"""A job's model once more, as one rank by itself has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hpc_train.distributed.placement import placed, placement
from hpc_train.distributed.share import share_of
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.mismatch import words_of
from hpc_train.model.unallocated import batch_specs, without_memory
from hpc_train.text import listed


@contextmanager
def as_one_rank() -> Iterator[None]:
    """A context in which such a model is built, which leaves generators and the names of later layers alone."""
    with placed(None), rng_state.unchanged(), names_unchanged():
        yield


@contextmanager
def names_unchanged() -> Iterator[None]:
    """A context whose layers are not counted: later ones get the names that they would get without them."""
    state = keras.src.backend.common.global_state
    names = dict(state.get_global_attribute("object_name_uids") or {})
    try:
        yield
    finally:
        counted = state.get_global_attribute("object_name_uids")
        if counted is not None:
            counted.clear()
            counted.update(names)


def check_parts(model: keras.Model, dataset: tf.data.Dataset, build: Callable[[], keras.Model]) -> None:
    """Whether `model`, whose layers are divided, is the one that another process has: checkpoints are of that. Local.

    Variables of the other one take no memory.

    Args:
        build: Makes another one, and all its variables, without computing.

    Raises:
        UserError: A variable or an output has another shape: a layer takes a part of something for the whole.
    """
    held = [(v.path, tuple((share_of(v) or v).shape)) for v in model.variables]
    given = _outputs(model, dataset)
    with as_one_rank(), without_memory():
        other = build()
        wanted, wanted_outputs = [tuple(v.shape) for v in other.variables], _outputs(other, dataset)
    if len(held) != len(wanted):
        raise UserError(f"the model has {len(held)} variables with run.mesh, but {len(wanted)} on one rank")
    for (path, shape), whole in zip(held, wanted, strict=True):
        if shape != whole:
            raise UserError(
                f"variable {path!r} has the shape {list(shape)} with run.mesh, but {list(whole)} on one rank, "
                "where its checkpoints could not be read: its layer gets a part of what it needs whole; set "
                "gather_output=True in the ColumnDense before it, or take ht.parallel.RowDense"
            )
    for (name, found), (_, one) in zip(given, wanted_outputs, strict=True):
        if found != one:
            raise UserError(
                f"output {name!r} of the model has the shape {found} with run.mesh, but {one} on one rank: it is "
                "made of activations or weights of which each rank has a part; set gather_output=True in the "
                "ColumnDense that gives them, and leave the weights of layers of ht.parallel to these"
            )


def refuse_parts(error: Exception, name: str, build: Callable[[], keras.Model]) -> None:
    """Has `error`, with which `build` fails for a mesh, said in the words of who wrote the model. Local.

    Does nothing where layers are whole, or `build`, the model function `name` and its trial, fails on one rank, too.

    Raises:
        UserError: One rank can build the model: a layer takes a part of something for the whole.
    """
    mesh = placement()
    if mesh is None or mesh.model == 1:
        return
    with as_one_rank(), without_memory():
        keras.src.backend.common.global_state.get_global_attribute("object_name_uids", {}).clear()  # named as before
        try:
            model = build()
        except Exception:  # the same one, or another
            return
    from hpc_train.parallel.dense import ColumnDense

    columns = [one for one in model._flatten_layers() if isinstance(one, ColumnDense) and not one.gather_output]
    named = f" ({listed(repr(one.name) for one in columns)})" if columns else ""
    raise UserError(
        f"{name}: one rank can build the model, but not the ranks of run.mesh: {words_of(error).rstrip('.')}; a layer "
        f"gets a part of what it needs whole: set gather_output=True in the ColumnDense before it{named}, or take "
        "ht.parallel.RowDense behind that"
    ) from None


def _outputs(model: keras.Model, dataset: tf.data.Dataset) -> list[tuple[str, list[int | None]]]:
    """Names and shapes of what `model` gives."""
    if found := getattr(model, "outputs", None):
        names = getattr(model, "output_names", None) or [tensor.name for tensor in found]
        return [(name, list(tensor.shape)) for name, tensor in zip(names, found, strict=True)]
    inputs, _, _ = keras.utils.unpack_x_y_sample_weight(batch_specs(dataset, model))
    called: Any = tf.function(lambda x: model(x), autograph=False).get_concrete_function(inputs)
    model._clear_losses()  # of the graph that was traced
    shapes = [tensor.shape for tensor in tf.nest.flatten(called.structured_outputs)]
    return [(str(n), list(shape) if shape.rank is not None else []) for n, shape in enumerate(shapes)]
