"""The signature that an exported model is called by: named inputs with any number of rows, named outputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model.own_steps import has_own_predict_step

ALONE = "output_0"
"""An output without a name."""
_NUMBERED = re.compile(r"(input_layer|keras_tensor)(_\d+)?")
"""Names that Keras gives inputs; the number counts those of the process."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
"""What TensorFlow replaces in the names of a signature's inputs."""


@dataclass(frozen=True)
class Signature:
    """How a model is called, and how its export is to be.

    Attributes:
        inputs: A tf.TensorSpec `[None, ...]` for each tensor that the model takes, by the name it has in the export.
        structure: What the model is called with: those names in place of the tensors.
        datasets: The dataset that each input was read from, where it has another name.
    """

    inputs: dict[str, Any]
    structure: Any
    datasets: dict[str, str] = field(default_factory=dict)


def signature_of(
    model: keras.Model,
    element_spec: Any,
    feature_names: Sequence[str] | None = None,
    datasets: Mapping[str, str] | None = None,
) -> Signature:
    """The signature of a model that is trained on batches of `element_spec`: `x`, `(x, y)` or `(x, y, weight)`.

    Args:
        feature_names: The datasets that the job reads as features. One names the model's only input; several name the
            inputs of a model that takes a list of as many.
        datasets: The dataset of each input, where the job gives inputs other names than datasets have.

    A dict of inputs keeps its names; else Keras's names of the inputs are taken. A model that has `serving_features`
    takes these alone of a dict.

    Raises:
        UserError: An input is not a dense tensor of rows.
    """
    x = element_spec[0] if isinstance(element_spec, tuple) else element_spec
    served = getattr(model, "serving_features", None)
    if served is not None and isinstance(x, dict):
        x = {name: spec for name, spec in x.items() if name in served}
    flat = tf.nest.flatten(x)
    names = _names(model, x, len(flat), feature_names)
    inputs, others = {}, {}
    plain = [re.sub("^_", "input_", _NOT_IN_NAMES.sub("_", name)) for name in names]  # none begins with an underscore
    if len(set(plain)) != len(plain):
        plain = [f"input_{i}" for i in range(len(flat))]
    for name, given, spec in zip(plain, names, flat, strict=True):
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank == 0:
            raise UserError(
                f"input {name!r} of the model is {spec}, which cannot be exported as it is; give the exporter a "
                "serving_fn whose input_signature has dense tensors with rows"
            )
        shape = [None, *spec.shape[1:]] if spec.shape.rank is not None else None
        inputs[name] = tf.TensorSpec(shape, spec.dtype, name=name)
        dataset = (datasets or {}).get(given, given)
        if name != dataset:
            others[name] = dataset
    return Signature(inputs, tf.nest.pack_sequence_as(x, plain), others)


def signature_of_inputs(
    model: keras.Model, feature_names: Sequence[str] | None = None, datasets: Mapping[str, str] | None = None
) -> Signature:
    """The signature of a model that declares its inputs itself, as all but subclassed ones do.

    Raises:
        UserError: It does not.
    """
    inputs = getattr(model, "_inputs_struct", None)  # a tensor, where the model was made of one alone
    inputs = getattr(model, "inputs", None) if inputs is None else inputs
    if inputs is None or len(tf.nest.flatten(inputs)) == 0:
        raise UserError(f"{type(model).__name__} does not describe its inputs, and there are no data that would")
    if isinstance(inputs, list | tuple) and len(inputs) == 1:
        inputs = inputs[0]
    spec = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)
    return signature_of(model, (spec,), feature_names, datasets)


def _names(model: keras.Model, x: Any, count: int, feature_names: Sequence[str] | None) -> list[str]:
    if isinstance(x, dict):
        paths = _paths(x)
        if len(paths) == count:
            return paths
    if feature_names is not None and len(feature_names) == count:
        return list(feature_names)
    own = [getattr(tensor, "name", None) for tensor in tf.nest.flatten(getattr(model, "inputs", None) or [])]
    names = [_NUMBERED.sub(r"\1", name) for name in own if name]
    if len(names) != count or len(set(names)) != count:
        names = [f"input_{i}" for i in range(count)]
    return names


def _paths(x: Any, at: tuple[Any, ...] = ()) -> list[str]:
    """Where the tensors of nested dicts, lists and tuples are, keys joined by dots, in tf.nest's order."""
    if isinstance(x, dict):
        return [path for key in sorted(x) for path in _paths(x[key], (*at, key))]
    if isinstance(x, list | tuple):
        return [path for i, item in enumerate(x) for path in _paths(item, (*at, i))]
    return [".".join(map(str, at))]


def default_serving(model: keras.Model, signature: Signature) -> Callable[..., Any]:
    """A tf.function that calls `model` for inference by `signature`, and gives a dict of outputs by name.

    By its predict_step, where that is the user's own, else by its call.
    """

    def serve(inputs: dict[str, Any]) -> dict[str, Any]:
        names = tf.nest.flatten(signature.structure)
        x = tf.nest.pack_sequence_as(signature.structure, [inputs[name] for name in names])
        outputs = model.predict_step((x,)) if has_own_predict_step(model) else model(x, training=False)
        return named_outputs(model, outputs)

    function: Callable[..., Any] = tf.function(serve, input_signature=[signature.inputs], autograph=False)
    return function


def named_outputs(model: keras.Model, outputs: Any) -> dict[str, Any]:
    """What `model` returned, by name: a dict's keys, Keras's names of the outputs, or output_0 and so on."""
    flat = tf.nest.flatten(outputs)
    if isinstance(outputs, dict):
        names = _paths(outputs)
    else:
        names = _output_names(model)
        if len(names) != len(flat) or len(set(names)) != len(flat):
            names = [ALONE] if len(flat) == 1 else [f"output_{i}" for i in range(len(flat))]
    return dict(zip(names, flat, strict=True))


def _output_names(model: keras.Model) -> list[str]:
    """Keras's names of the outputs, without the number that it gives a layer that has no name of its own (dense_7)."""
    names = []
    tensors = tf.nest.flatten(getattr(model, "outputs", None) or [])
    for name, tensor in zip(getattr(model, "output_names", None) or [], tensors, strict=False):
        kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(tensor._keras_history.operation).__name__).lower()
        names.append(kind if re.fullmatch(rf"{kind}_\d+", name) else name)
    return names


def custom_serving(serving_fn: Callable[[Any], Any], model: keras.Model, where: str) -> Callable[..., Any]:
    """The tf.function that `serving_fn` makes of `model`, checked and traced.

    Raises:
        UserError: It is no tf.function with an input_signature that names each input, or returns neither a tensor nor a
            dict of tensors. Whatever `serving_fn` raises.
    """
    function = serving_fn(model)
    signature = getattr(function, "input_signature", None)
    wanted = "it must return a tf.function with an input_signature of tf.TensorSpec(…, name=…)"
    if not isinstance(function, tf.types.experimental.PolymorphicFunction) or signature is None:
        kind = type(function).__name__ if not hasattr(function, "get_concrete_function") else "one without it"
        raise UserError(f"{where}: serving_fn returned {kind}; {wanted}")
    specs = tf.nest.flatten(signature)
    if not specs or any(getattr(spec, "name", None) is None for spec in specs):
        unnamed = ", ".join(str(spec) for spec in specs if getattr(spec, "name", None) is None) or "no inputs"
        raise UserError(f"{where}: serving_fn returned a tf.function with {unnamed}; {wanted}")
    names = [spec.name for spec in specs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{where}: serving_fn returned a tf.function with two inputs called {', '.join(twice)}")
    outputs = function.get_concrete_function().structured_outputs
    if not isinstance(outputs, tf.TensorSpec | tf.Tensor) and not (
        isinstance(outputs, dict) and all(isinstance(key, str) for key in outputs)
    ):
        raise UserError(
            f"{where}: the function of serving_fn returns {type(outputs).__name__}; it must return a tensor, or a dict "
            "of tensors by name"
        )
    made: Callable[..., Any] = function
    return made


def own_resources(function: Callable[..., Any]) -> list[Any]:
    """Layers, tables and variables that a tf.function refers to by name: a SavedModel has to hold them."""
    python_function = getattr(function, "python_function", function)
    named = inspect.getclosurevars(inspect.unwrap(python_function))
    values = {id(value): value for value in (*named.nonlocals.values(), *named.globals.values())}
    return [value for value in values.values() if isinstance(value, tf.__internal__.tracking.Trackable)]
