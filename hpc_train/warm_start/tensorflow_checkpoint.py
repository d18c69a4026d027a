"""The variables in a checkpoint of TensorFlow, saved by name or as objects, and what else lies there. Local."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpc_train.errors import UserError
from hpc_train.files import read_bytes
from hpc_train.lazy import tf
from hpc_train.model.model_state import by_name
from hpc_train.warm_start.checkpoint_index import MAX_INDEX_BYTES, check_index
from hpc_train.warm_start.checkpoint_prefix import data_files

Other = Literal["optimizer", "counter", "text", "other"]
"""What is no variable of a model: an optimizer's, a number of steps or saves, text, what else objects store."""

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_STEPS = ("global_step", "estimator_global_step")
_AVERAGE = "/ExponentialMovingAverage"
"""Of a variable, saved below its name as the optimizers' slots are; a model may begin with it."""
_OF_OPTIMIZERS = re.compile(r"(?:.+/)?beta[12]_power(?:_\d+)?|training(?:_\d+)?/[A-Z]\w*/.+")
"""Adam's powers of its betas, and the scopes of Keras's optimizers in an Estimator's graph."""
_ITERATIONS = ("iter", "_iterations")
"""What every optimizer of Keras has, whatever it is called among objects."""


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds.

    Attributes:
        step: Its global_step, None where there is none.
        arrays: The variables that a model may have, by name.
        others: What else there is, by name.
    """

    step: int | None
    arrays: dict[str, np.ndarray]
    others: dict[str, Other]


def read(prefix: Path) -> Content:
    """Reads the checkpoint `prefix`; TensorFlow has been set up. Variables in slices are put together.

    Values of optimizers, and texts, stay unread.

    Raises:
        UserError: The checkpoint is damaged.
        OSError: Its files are gone.
    """
    with _reading(f"{prefix}.index: damaged, or not written by TensorFlow"):
        check_index(read_bytes(f"{prefix}.index", MAX_INDEX_BYTES, follow=True))
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        paths = dict(stored_names(reader)) if _GRAPH in shapes else {}
    others = {key: kind for key, dtype in dtypes.items() if (kind := _unfit(dtype))} | others_among(shapes)
    names = names_of([key for key in sorted(shapes) if key not in others], paths)
    _check_size(prefix, sum(math.prod(shapes[key]) * dtypes[key].size for key in names.values()))
    arrays = {name: _value(reader, key, prefix) for name, key in names.items()}
    steps = [key for key in shapes if _bare(key) in _STEPS and dtypes[key].is_integer and not shapes[key]]
    return Content(
        int(_value(reader, steps[0], prefix)) if steps else None,
        arrays,
        {_bare(key): kind for key, kind in others.items() if key != _GRAPH},
    )


def stored_names(reader: Any) -> list[tuple[str, str]]:
    """Of all that the objects of a checkpoint store: its key, and what the variable was called, if anything."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(_GRAPH))
    return [(a.checkpoint_key, a.full_name) for node in graph.nodes for a in node.attributes]


def names_of(keys: Collection[str], paths: Mapping[str, str]) -> dict[str, str]:
    """Keys by the names that users see, in the order of `keys`. Pure.

    A variable among objects has the path that Keras gave it, where no other one has the same; else its key without
    the end that all have.

    Args:
        paths: By key, what the variable was called when it was saved.
    """
    counts = Counter(paths.get(key, "") for key in keys)

    def name_of(key: str) -> str:
        path = paths.get(key, "")
        return path if "/" in path and counts[path] == 1 else _bare(key)

    return by_name([(name_of(key), key) for key in keys])


def others_among(keys: Collection[str]) -> dict[str, Other]:
    """What is no variable of a model, as far as the keys tell. Pure."""
    if _GRAPH not in keys:
        return {key: kind for key in keys if (kind := _kind_of_name(key, keys))}
    optimizers = {
        f"{holder}/" for holder, _, last in (_bare(key).rpartition("/") for key in keys) if last in _ITERATIONS
    }
    return {key: kind for key in keys if (kind := _kind_of_object(key, optimizers))}


def _kind_of_name(name: str, names: Collection[str]) -> Other | None:
    if name in _STEPS:
        return "counter"
    is_below = any(name[: slash.start()] in names for slash in re.finditer("/", name))
    is_slot = is_below and not name.endswith(_AVERAGE)
    return "optimizer" if is_slot or _OF_OPTIMIZERS.fullmatch(name) else None


def _kind_of_object(key: str, optimizers: Collection[str]) -> Other | None:
    bare, parts = _bare(key), key.split("/")
    if bare in (*_STEPS, "save_counter"):
        return "counter"
    if bare == key or "keras_api" in parts:  # no variable; a metric's
        return "other"
    if ".OPTIMIZER_SLOT" in parts:
        return "optimizer"
    is_part = "optimizer" in parts or "_optimizer" in parts or bare.startswith(tuple(optimizers))
    return "optimizer" if is_part and "_trainable_variables" not in parts else None  # those are the model's


def _bare(key: str) -> str:
    return key.removesuffix(_VALUE)


def _unfit(dtype: Any) -> Other | None:
    """What a variable of this type is, which no model of Keras has; None: it is one of numbers."""
    if dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex:
        return None
    return "text" if dtype.name == "string" else "other"


def _check_size(prefix: Path, declared: int) -> None:
    stored = sum(path.stat().st_size for path in data_files(prefix))
    if declared > stored:
        raise UserError(
            f"warm_start_from: {prefix}.data-*: {stored:,} bytes, but the variables have {declared:,}; "
            f"copy all files {prefix.name}.* again"
        )


def _value(reader: Any, key: str, prefix: Path) -> np.ndarray:
    with _reading(f"{prefix}.data-*: the values of {_bare(key)} are damaged, or cut short"):
        return np.asarray(reader.get_tensor(key))


@contextmanager
def _reading(problem: str) -> Iterator[None]:
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception:  # of a damaged file TensorFlow raises nearly anything: IndexError, TypeError, OpError
        raise UserError(
            f"warm_start_from: {problem}; copy all files of the checkpoint again, or give another one"
        ) from None
