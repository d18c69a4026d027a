"""A model that does not take the rows it is given, in the user's words."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError, did_you_mean
from hpc_train.lazy import keras, tf
from hpc_train.text import listed

_PACKAGE = str(Path(__file__).parents[1])
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_OF_TENSORFLOW = re.compile(r"\{\{.*?\}\} ?|\[Op:\w+\].*")
_WRAPPED = "Exception encountered when calling "
_OF_KERAS = re.compile(rf"{_WRAPPED}.*?\n\n(.*?)\n\nArguments received by ", re.DOTALL)
_UNKNOWN = re.compile(r"Could not interpret (metric|loss) identifier: (\w+)")
_PLURALS = {"metric": "metrics", "loss": "losses"}


def in_own_code(error: BaseException) -> bool:
    """Whether code of the user's own was running, such as that of a layer: then the traceback is of use."""
    return any(_is_own(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def _is_own(file: str) -> bool:
    places = [_PACKAGE, *(str(Path(str(module.__file__)).parent) for module in (keras, tf))]
    return (
        not file.startswith(tuple(places)) and "site-packages" not in file and "__autograph_generated_file" not in file
    )


def failed_metric(error: BaseException) -> str | None:
    """What a metric of the user's own has raised, and where; None where it was something else."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [k for k, frame in enumerate(frames) if frame.name in ("compute_metrics", "get_metrics_result")]
    own = [frame for frame in frames[places[0] :] if _is_own(frame.filename)] if places else []
    if not own:
        return None
    what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}".rstrip(": ")
    return f"a metric raises {_COLOURS.sub('', what)} ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})"


def as_raised(error: UserError) -> UserError:
    """The error that a layer has raised, without what Keras wraps around its message."""
    while _COLOURS.sub("", str(error)).startswith(_WRAPPED) and isinstance(error.__context__, UserError):
        error = error.__context__
    return error


def words_of(error: BaseException) -> str:
    """What Keras or TensorFlow say is wrong, in one line."""
    found = _OF_TENSORFLOW.sub("", _COLOURS.sub("", str(error))).strip()
    match = _OF_KERAS.search(found)
    return " ".join((match[1] if match else found).split())


def mismatch(name: str, model: keras.Model, dataset: tf.data.Dataset, error: Exception) -> str:
    """What does not fit, where Keras found that the model of the function `name` and the batches do not."""
    found = _OF_TENSORFLOW.sub("", _COLOURS.sub("", str(error))).strip()
    if (unknown := _UNKNOWN.search(found)) is not None:
        kind, given = unknown.groups()
        near = did_you_mean(given, ["accuracy", *dir(keras.losses if kind == "loss" else keras.metrics)])
        return f"{name}: Keras has no {kind} {given!r}; {near}name one of keras.{_PLURALS[kind]}, or give the function"
    features, *rest = dataset.element_spec if isinstance(dataset.element_spec, tuple) else (dataset.element_spec,)
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    if "NoneType" in found and "compute_loss" in frames:
        if not rest:
            return f"{name}: the loss compares with a label, but batches have features alone; give the data a `label`"
        return f"{name}: a loss function returns None; let it return one number a row, `[B]`"
    given = f"{name}: the model does not take the rows that it is given: features {_described(features)}"
    if rest:
        given += f", label {_described(rest[0])}"
    inputs = getattr(model, "inputs", None) or []
    if isinstance(features, dict) and len(features) > 1 and len(inputs) == 1:
        names = list(features)
        return (
            f"{given}; it has one input, but features are {len(names)} by name: give it an input of each name "
            f"(keras.Model({{{names[0]!r}: …, {names[1]!r}: …}}, output)), or make one column of them (hpc-train shard "
            f"--stack x={','.join(names[:2])},…) and name that as features"
        )
    return f"{given}; Keras: {words_of(error)}"


def _described(spec: Any) -> str:
    if isinstance(spec, dict):
        return listed(f"{name!r} {_described(one)}" for name, one in spec.items())
    if isinstance(spec, tuple | list):
        return listed(map(_described, spec))
    shape = getattr(spec, "shape", None)
    rows = "?" if shape is None or shape.rank is None else ", ".join(["rows", *map(str, shape[1:])])
    return f"{getattr(getattr(spec, 'dtype', None), 'name', spec)} [{rows}]"
