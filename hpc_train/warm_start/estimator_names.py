"""What the canned estimators of tf.estimator (TensorFlow 2.15) call their variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hpc_train.errors import UserError
from hpc_train.text import listed

Tower = Literal["dnn", "linear"]
Layer = Mapping[str, str]
"""Of a Dense layer: the names of its variables by `kernel` and, where it has one, `bias`."""

_ROLES = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance")
_STAGES: tuple[tuple[Tower, str], ...] = (
    ("dnn", r"dnn/input_from_feature_columns/input_layer/(?P<place>.+)/(?P<role>embedding_weights)"),
    ("dnn", rf"dnn/(?P<place>hiddenlayer_(?P<number>\d+))/(?:batchnorm_(?P=number)/)?(?P<role>{'|'.join(_ROLES)})"),
    ("dnn", r"dnn/(?P<place>logits)/(?P<role>kernel|bias)"),
    ("linear", r"linear/linear_model/(?P<place>.+)/(?P<role>weights)"),
    ("linear", r"linear/linear_model/(?P<place>)(?P<role>bias_weights)"),
)
"""Of what has variables, in the order in which a model computes: its tower, and its variables' names."""
_SHOWN = 20


@dataclass(frozen=True)
class CannedVariable:
    """A variable of a canned estimator.

    Attributes:
        name: In the checkpoint.
        tower: Its part of the model.
        place: `hiddenlayer_0`, …, `logits`, or the name of a feature column; empty for the linear tower's bias.
        role: `kernel`, `bias`, and of batch normalisation `gamma`, `beta`, `moving_mean`, `moving_variance`;
            `embedding_weights` of a column of the DNN; `weights` of a linear column, and the `bias_weights`.
    """

    name: str
    tower: Tower
    place: str
    role: str


def canonical(names: Collection[str]) -> list[CannedVariable]:
    """Those of `names` that canned estimators use, in the order in which a model computes.

    That is: embeddings, hidden layers with their batch normalisation, logits, columns of the linear tower, its bias.
    Columns are in the order of their names, as they are in the input of the first hidden layer.
    """
    found = []
    for stage, (tower, pattern) in enumerate(_STAGES):
        for name in names:
            if match := re.fullmatch(pattern, name):
                variable = CannedVariable(name, tower, match["place"], match["role"])
                layer = int(match.groupdict().get("number", 0))
                role = _ROLES.index(variable.role) if variable.role in _ROLES else 0
                found.append(((stage, layer, variable.place, role), variable))
    return [variable for _, variable in sorted(found, key=lambda pair: pair[0])]


def dense_pairs(here: Sequence[Layer], there: Collection[str], source: object) -> dict[str, str]:
    """Names there by names here, of a model's Dense layers and a canned DNN's hidden layers and logits, in their order.

    Empty where `there` has no variable of a canned estimator. Whether their shapes are the same is not looked at.

    Args:
        here: The model's Dense layers.
        source: What to call the checkpoint in an error.

    Raises:
        UserError: The checkpoint has more than hidden layers and logits, or the model other layers.
    """
    layers: dict[str, dict[str, str]] = {}
    for variable in canonical(there):
        layers.setdefault(f"{variable.tower}/{variable.place}", {})[variable.role] = variable.name
    if not layers:
        return {}
    plain = all(layer.keys() <= {"kernel", "bias"} for layer in layers.values())
    if not plain or [layer.keys() for layer in here] != [layer.keys() for layer in layers.values()]:
        raise UserError(
            f"warm start: {source} is of a canned estimator, with {_names(layers.values())}; by itself a model takes "
            "the weights of a DNN alone, without embeddings, batch normalisation and linear part, by as many Dense "
            f"layers in the same order, and this one's have {_names(here)}; give var_name_to_prev_var_name"
        )
    return {
        name: other[role] for layer, other in zip(here, layers.values(), strict=True) for role, name in layer.items()
    }


def _names(layers: Iterable[Layer]) -> str:
    return listed((name for layer in layers for name in layer.values()), most=_SHOWN)
