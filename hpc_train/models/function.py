"""The model function of a built-in model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpc_train.arguments import checked_arguments, is_path, not_allowed, shown
from hpc_train.config.builtin_model import KINDS, BuiltinModel, GBDTModel, ImageModel, KerasModel, model_from
from hpc_train.config.table_schema import read_schema
from hpc_train.config.validation import Shortened, said_of
from hpc_train.errors import UserError, did_you_mean
from hpc_train.lazy import keras
from hpc_train.models.image import image_model
from hpc_train.models.optimizer import optimizer_of
from hpc_train.models.tabular import tabular_model


@dataclass(frozen=True)
class BuiltinModelFunction:
    """A model function without arguments, which builds and compiles the model that `settings` describe.

    Raises:
        UserError: When it is called: the schema lacks what the model needs.
    """

    settings: KerasModel

    def __post_init__(self) -> None:
        object.__setattr__(self, "__qualname__", f"builtin {self.settings.builtin}")  # what messages call it

    def __call__(self) -> keras.Model:
        settings = self.settings
        made, head = image_model(settings) if isinstance(settings, ImageModel) else tabular_model(settings)
        made.compile(
            optimizer_of(settings),
            head.loss(),
            loss_weights=None if head.loss_weight == 1 else [head.loss_weight],
            metrics=head.metrics(),
        )
        return made


@checked_arguments
def builtin_model(name: str, schema: str | Path | None = None, **options: Any) -> BuiltinModelFunction:
    """The model function of a built-in model, for an Estimator without params. Local.

    The model takes raw values, a dict by column, as an HDF5Input gives them whose `features` are all columns that the
    schema gives a model, and whose `label` is that of the schema; see docs/builtin_models.md.

    Args:
        name: `linear`, `dnn`, `wide_deep` or `image`.
        schema: The path of schema.yaml, which is read now; None: of `image`, which has none.
        options: As in a job file: `hidden_units=[64, 32]`.

    Raises:
        UserError: With every mistake of the options, or of the schema.
    """
    where = "builtin_model"
    if not isinstance(name, str) or name not in KINDS:
        hint = did_you_mean(name, KINDS) if isinstance(name, str) and len(name) < 100 else ""
        raise not_allowed(where, "name", name, f"{', '.join(KINDS)}{hint and '; ' + hint.rstrip()}")
    if schema is not None and not is_path(schema):
        raise not_allowed(where, "schema", schema, "the path of a schema.yaml, or None")
    given = {} if schema is None else {"schema": Path(schema)}
    try:
        settings: BuiltinModel = model_from({**options, **given, "builtin": name})
    except ValidationError as error:
        lines = [f"{where}: {_said(dict(each), KINDS[name])}" for each in error.errors()]
        raise UserError("\n".join(dict.fromkeys(lines))) from None
    if isinstance(settings, GBDTModel):
        raise UserError(
            f"{where}: name: 'gbdt' is no Keras model; give it in a job file, as `model: {{builtin: gbdt}}`"
        )
    if isinstance(settings, ImageModel):
        return BuiltinModelFunction(replace(settings, weights=settings.weights and settings.weights.absolute()))
    if isinstance(settings.schema, Path):
        settings = replace(settings, schema=read_schema(settings.schema))
    return BuiltinModelFunction(settings)


def _said(error: dict[str, Any], kind: type[BuiltinModel]) -> str:
    location = error["loc"]
    dotted = ".".join(shown(part).strip("'") for part in location)
    return f"{dotted}: {said_of({**error, 'input': Shortened(error['input'])}, location, kind)}"
