"""Task: what a model's one output means, by the loss that it is compiled with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf

Kind = Literal["classes", "binary", "values"]

_KINDS: dict[str, Kind] = {
    "sparse_categorical_crossentropy": "classes",
    "categorical_crossentropy": "classes",
    "categorical_focal_crossentropy": "classes",
    "binary_crossentropy": "binary",
    "binary_focal_crossentropy": "binary",
    "mean_squared_error": "values",
    "mean_absolute_error": "values",
    "mean_absolute_percentage_error": "values",
    "mean_squared_logarithmic_error": "values",
    "huber": "values",
    "log_cosh": "values",
    "poisson": "values",
}
"""By the names of Keras's losses as functions."""


@dataclass(frozen=True)
class Task:
    """What a model gives.

    Attributes:
        kind: "classes": probabilities of classes, along the last axis. "binary": probabilities, each of its own.
            "values": numbers.
        are_logits: Whether the model gives logits in place of probabilities.
    """

    kind: Kind
    are_logits: bool = False

    def outputs(self, given: Any) -> Any:
        """Probabilities or values, float32, of what the model gives."""
        given = keras.ops.cast(given, "float32")
        if not self.are_logits:
            return given
        return keras.ops.softmax(given, axis=-1) if self.kind == "classes" else keras.ops.sigmoid(given)


def task_of(model: keras.Model, where: str) -> Task:
    """The task of a model that was compiled.

    Raises:
        UserError: It has no loss of Keras's by which its output can be understood.
    """
    loss = model.loss
    if isinstance(loss, dict | list | tuple):
        alone = tf.nest.flatten(loss)
        if len(alone) != 1:
            raise UserError(f"{where}: has {len(alone)} losses; an ensemble is one of models with one output")
        loss = alone[0]
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    name = getattr(loss, "__name__", None) or _as_function(type(loss).__name__)
    kind = _KINDS.get(name) if loss is not None and _is_keras(loss) else None
    if kind is None:
        given = "no loss of its own" if loss is None else f"the loss {name}"
        raise UserError(
            f"{where}: is compiled with {given}, which does not tell whether it gives probabilities or values; an "
            f"ensemble knows {', '.join(sorted(_KINDS))}"
        )
    options = loss.get_config() if isinstance(loss, keras.losses.Loss) else {}
    if options.get("ignore_class") is not None or options.get("axis", -1) != -1:
        raise UserError(f"{where}: its loss has an `ignore_class` or an `axis`, which an ensemble does not follow")
    return Task(kind, bool(options.get("from_logits", False)))


def _is_keras(loss: Any) -> bool:
    return (getattr(loss, "__module__", None) or type(loss).__module__).partition(".")[0] == "keras"


def _as_function(name: str) -> str:
    """`MeanSquaredError` as `mean_squared_error`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
