"""The built-in models of a job file: `model: {builtin: dnn, schema: schema.yaml, hidden_units: [64, 32]}`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.arguments import shown
from hpc_train.config.table_schema import TableSchema
from hpc_train.config.types import FUNCTION_PATTERN, MAX_CLASSES, MOST_BUCKETS, MOST_UNITS, STRICT, Count
from hpc_train.config.validation import unknown_key, wrong_at
from hpc_train.errors import did_you_mean

Optimizer = Literal["adam", "adamw", "sgd", "rmsprop", "adagrad", "ftrl", "lion"]
Activation = Literal["relu", "gelu", "silu", "tanh", "elu", "selu"]
Backbone = Literal[
    "small",
    "convnext_tiny",
    "densenet121",
    "efficientnet_v2_b0",
    "efficientnet_v2_s",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "resnet50",
    "resnet50_v2",
    "vgg16",
    "xception",
]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=0, allow_inf_nan=False)]
TreePenalty = Annotated[float, Field(ge=0, le=1e38)]
"""XGBoost has float32."""
Share = Annotated[float, Field(ge=0, lt=1)]
Width = Annotated[int, Field(ge=1, le=MOST_UNITS, strict=True)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Trained:
    optimizer: Optimizer = "adam"
    learning_rate: Rate = 0.001


def _schema_from(value: Any) -> Any:
    return TableSchema.model_validate(value) if isinstance(value, Mapping) else value


SchemaOption = Annotated[TableSchema | Path, BeforeValidator(_schema_from)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Tabular(_Trained):
    schema: SchemaOption


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LinearModel(_Tabular):
    """A generalised linear model: logistic, softmax, least squares or Poisson regression.

    Args:
        schema: Of the table: the path of schema.yaml, relative to the job file; or what stands in it.
        optimizer, learning_rate: As Keras calls them; what else they take is as Keras has it.
        l2: The penalty, half of it times the sum of the squared weights, over the rows of the schema: as `1 / C` of
            scikit-learn's LogisticRegression, whose default is 1, too. l1: the same times the sum of their absolute
            values. The bias has none.
    """

    builtin: Literal["linear"] = "linear"
    learning_rate: Rate = 0.01
    l1: Penalty = 0.0
    l2: Penalty = 1.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DNNModel(_Tabular):
    """Dense layers on numbers, and on embeddings of categories and words.

    Args:
        schema, optimizer, learning_rate: As in LinearModel.
        hidden_units: The widths of the layers.
        activation: Of each layer. dropout: the share of its outputs that are left out in training.
        batch_norm: Whether each layer is normalised over the batch before its activation.
        l1, l2: Keras's penalties of the dense layers' kernels.
    """

    builtin: Literal["dnn"] = "dnn"
    hidden_units: Annotated[tuple[Width, ...], Field(min_length=1)] = (100,)
    activation: Activation = "relu"
    dropout: Share = 0.0
    batch_norm: bool = False
    l1: Penalty = 0.0
    l2: Penalty = 0.0


def _are_different(crosses: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """`crosses`; ValidationError where one has a column twice, or the columns of another."""
    seen: dict[frozenset[str], int] = {}
    for number, names in enumerate(crosses):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise wrong_at((number,), names, f"{shown(twice)} is named twice; cross different columns")
        if (first := seen.setdefault(frozenset(names), number)) != number:
            raise wrong_at((number,), names, f"has the same columns as crosses.{first}; leave one of them out")
    return crosses


Cross = Annotated[tuple[str, ...], Field(min_length=2)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WideDeepModel(DNNModel):
    """A linear model of categories, words and crosses, and a DNNModel of all columns, whose logits are added up.

    After Cheng et al., Wide & Deep Learning for Recommender Systems, 2016 (arXiv:1606.07792).

    Args:
        crosses: Lists of categorical columns; each combination of their values has a weight of its own.
        hash_buckets: Into so many the combinations of a cross are hashed.
    """

    builtin: Literal["wide_deep"] = "wide_deep"  # type: ignore[assignment]
    crosses: Annotated[tuple[Cross, ...], AfterValidator(_are_different)] = ()
    hash_buckets: Annotated[int, Field(ge=1, le=MOST_BUCKETS, strict=True)] = 10_000


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GBDTModel:
    """Gradient boosted decision trees, by XGBoost; `train.max_steps` is the number of rounds.

    After Chen and Guestrin, XGBoost: A Scalable Tree Boosting System, 2016 (arXiv:1603.02754).

    Args:
        schema: As in LinearModel.
        learning_rate: What the leaves of a tree are multiplied by (XGBoost's eta).
        max_depth: Of a tree. min_child_weight: the least sum of second derivatives in a leaf.
        gamma: The least decrease of the loss for a split.
        l1, l2: Penalties of the leaves (XGBoost's alpha and lambda).
        max_bin: Into so many bins numbers are put.
    """

    builtin: Literal["gbdt"] = "gbdt"
    schema: SchemaOption
    learning_rate: Annotated[float, Field(ge=1e-6, le=1)] = 0.1
    max_depth: Annotated[int, Field(ge=1, le=16, strict=True)] = 6
    min_child_weight: TreePenalty = 1.0
    gamma: TreePenalty = 0.0
    l1: TreePenalty = 0.0
    l2: TreePenalty = 1.0
    max_bin: Annotated[int, Field(ge=2, le=65_536, strict=True)] = 256


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ImageModel(_Trained):
    """A backbone of keras.applications, or a small one, on images as they are stored, and a softmax layer.

    Args:
        shape: Of an image: height, width and channels. Values are 0 to 255; the model scales them as its backbone does.
        classes: How many there are; labels are whole numbers from 0 on.
        backbone: `small`: four convolutions, for small images. Others want 32 x 32 at least (xception: 71 x 71).
        weights: A local file of keras.applications' weights of that backbone without its top (`*_notop.h5`), for images
            with three channels. None: random ones. Nothing is ever downloaded.
        train_backbone: Whether the backbone is trained, or the last layer alone.
        dropout: Before the last layer. optimizer, learning_rate: as in LinearModel.
    """

    builtin: Literal["image"] = "image"
    shape: tuple[Count, Count, Annotated[int, Field(ge=1, le=4, strict=True)]]
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES, strict=True)]
    backbone: Backbone = "small"
    weights: Path | None = None
    train_backbone: bool = True
    dropout: Share = 0.2

    @field_validator("train_backbone")
    @classmethod
    def _has_something_to_keep(cls, train: bool, info: Any) -> bool:
        if not train and info.data.get("weights") is None:
            raise ValueError("`train_backbone: false` keeps a backbone of random weights; give `weights`, too")
        return train


KerasTabularModel = LinearModel | DNNModel | WideDeepModel
TabularModel = LinearModel | DNNModel | WideDeepModel | GBDTModel
KerasModel = LinearModel | DNNModel | WideDeepModel | ImageModel
BuiltinModel = LinearModel | DNNModel | WideDeepModel | GBDTModel | ImageModel

KINDS: dict[str, type[BuiltinModel]] = {
    "linear": LinearModel,
    "dnn": DNNModel,
    "wide_deep": WideDeepModel,
    "gbdt": GBDTModel,
    "image": ImageModel,
}
"""By the job file's `builtin`."""
ALLOWED = "file.py:function, package.module:function, or a mapping with `builtin`"


def options_of(kind: type[BuiltinModel]) -> list[str]:
    """The keys of a built-in model, the first ones those that all have."""
    names = [field.name for field in dataclasses.fields(kind)]
    return ["builtin", *(name for name in names if name != "builtin")]


def model_from(value: Any) -> Any:
    """The model that `model:` of a job file describes: a function's name, or a built-in one.

    Raises:
        ValidationError: With every mistake, each at its option. ValueError: it is neither.
    """
    if isinstance(value, BuiltinModel):
        return value
    if isinstance(value, str) and re.fullmatch(FUNCTION_PATTERN[1:-1], value):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not allowed; allowed: {ALLOWED}")
    kind = value.get("builtin")
    if kind is None:
        raise ValueError(f"`builtin` is missing, and it has no default; allowed: {', '.join(KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
        raise wrong_at(("builtin",), kind, f"{shown(kind)} is not allowed; {hint}allowed: {', '.join(KINDS)}")
    allowed = options_of(KINDS[kind])
    for key in value:
        if key not in allowed:
            raise wrong_at((str(key),), value[key], unknown_key(str(key), allowed))
    return TypeAdapter(KINDS[kind]).validate_python(dict(value))


ModelSection = Annotated[str | BuiltinModel, BeforeValidator(model_from)]
"""The type of the job file's `model:`."""
