"""FinalExporter, LatestExporter and BestExporter, and the job file's `exporters:`.

Names and defaults follow tf.estimator's exporters (TensorFlow 2.15 API documentation).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import InitErrorDetails, PydanticCustomError

from hpc_train.arguments import shown
from hpc_train.config.estimator_arguments import BEST_EXPORTER, EXPORTERS
from hpc_train.config.functions import COMPARE_FN, SERVING_FN
from hpc_train.config.types import STRICT, Count, Name, as_sequence, as_tuple, function_of
from hpc_train.config.validation import specification, unknown_key, wrong_at
from hpc_train.errors import did_you_mean

ServingFunction = Annotated[Any, function_of(*SERVING_FN)]
Assets = Annotated[tuple[Path, ...], BeforeValidator(as_tuple)]


def _without_serving_fn(value: str, info: ValidationInfo) -> str:
    if value == "shards" and info.data.get("serving_fn") is not None:
        raise ValueError("shards is not allowed with a serving_fn, which is for a SavedModel, and shards have none")
    return value


TablePlace = Literal["auto", "whole", "shards"]
"""Where an export has the tables of ht.parallel.ShardedEmbedding: in the model, or beside it."""
Tables = Annotated[TablePlace, AfterValidator(_without_serving_fn)]


@specification
@dataclass(frozen=True, config=STRICT)
class FinalExporter:
    """Exports the model once, when training has ended, as export/<name>/<unix seconds>/ (a SavedModel).

    Args:
        name: The folder below export/.
        serving_fn: `(model) -> tf.function`, whose `input_signature` names each of its inputs; it returns a tensor, or
            a dict of outputs by name. It becomes the signature `serving_default`, so that what it does before it calls
            the model is part of the export. `None`: the model as it was trained. In a job file: `file.py:function`.
        assets: Files that are copied into the SavedModel's assets/.
        tables: Where the tables of ht.parallel.ShardedEmbedding go: `"whole"`, into the model; `"shards"`, into files
            beside it, without a SavedModel, see load_exported_model; `"auto"`: into the model where that fits into the
            chief's memory.
    """

    retired: ClassVar[Mapping[str, str]] = EXPORTERS
    exports_to_keep: ClassVar[None] = None
    name: Name = "final"
    serving_fn: ServingFunction = None
    assets: Assets = ()
    tables: Tables = "auto"

    def is_due(self, step: int, last: bool) -> bool:
        """Whether an export may follow an evaluation of the checkpoint of `step`; `last`: training has ended."""
        return last


@specification
@dataclass(frozen=True, config=STRICT)
class LatestExporter:
    """Exports the model at each evaluation.

    Args:
        name, serving_fn, assets, tables: As in FinalExporter.
        exports_to_keep: The newest so many exports stay; `None` keeps all.
    """

    retired: ClassVar[Mapping[str, str]] = EXPORTERS
    name: Name = "latest"
    exports_to_keep: Count | None = 5
    serving_fn: ServingFunction = None
    assets: Assets = ()
    tables: Tables = "auto"

    def is_due(self, step: int, last: bool) -> bool:
        """See FinalExporter: always."""
        return True


@specification
@dataclass(frozen=True, config=STRICT)
class BestExporter:
    """Exports the model when an evaluation is strictly better than the best before, also across restarts.

    Args:
        name, serving_fn, assets, tables: As in FinalExporter.
        metric, mode: The evaluation with the smallest (`"min"`) or largest (`"max"`) value of this metric is best. A
            value that is not a number is never better.
        compare_fn: `(best_metrics: dict, current_metrics: dict) -> bool`: whether the current evaluation is better,
            instead of `metric` and `mode`. In a job file: `file.py:function`.
        exports_to_keep: As in LatestExporter.
    """

    retired: ClassVar[Mapping[str, str]] = BEST_EXPORTER
    name: Name = "best"
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"
    compare_fn: Annotated[Any, function_of(*COMPARE_FN)] = None
    exports_to_keep: Count | None = 5
    serving_fn: ServingFunction = None
    assets: Assets = ()
    tables: Tables = "auto"

    @model_validator(mode="after")
    def _compares_one_way(self) -> BestExporter:
        if self.compare_fn is not None and (self.metric, self.mode) != ("loss", "min"):
            raise ValueError("give `compare_fn`, or `metric` and `mode`, not both")
        return self

    def is_due(self, step: int, last: bool) -> bool:
        """See FinalExporter: always, and where it is better."""
        return True


Exporter = FinalExporter | LatestExporter | BestExporter


def _are_exporters(value: Any) -> Any:
    for exporter in (given := as_sequence(value)):
        if not isinstance(exporter, Exporter):
            allowed = "an ht.FinalExporter, ht.LatestExporter or ht.BestExporter, or a list of them"
            raise ValueError(f"{shown(exporter)} is not allowed; allowed: {allowed}")
    return given


Exporters = Annotated[tuple[Exporter, ...], BeforeValidator(_are_exporters)]
"""Exporters, one alone or none, of an EvalSpec."""

KINDS: dict[str, type[Exporter]] = {"final": FinalExporter, "latest": LatestExporter, "best": BestExporter}
"""By the job file's `type`."""


def exporters_from(value: Any) -> Any:
    """The exporters that a job file's mapping of names to options describes; anything else is returned as it is.

    `type` is `final`, `latest` or `best`; where it is missing, the name is. An exporter whose options are null is none.

    Raises:
        ValidationError: With every mistake, each at (name, option).
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        return value
    found, problems = [], []
    for name, options in value.items():
        if options is None:  # as --set eval.exporters.final=null turns one off
            continue
        try:
            found.append(_exporter(str(name), options))
        except ValidationError as error:
            problems += [{**e, "loc": (name, *e["loc"])} for e in error.errors()]
    if problems:
        raise ValidationError.from_exception_data("exporters", [_again(problem) for problem in problems])
    return tuple(found)


def _again(error: Mapping[str, Any]) -> InitErrorDetails:
    """An error of pydantic's, to be raised at another place."""
    if error["type"] == "value_error":
        kind: Any = PydanticCustomError("value_error", "{error}", {"error": str(error["ctx"]["error"])})
    else:
        kind = error["type"]
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))


def _exporter(name: str, options: Any) -> Exporter:
    if not isinstance(options, Mapping):
        raise wrong_at((), options, f"{options!r} is not allowed; allowed: a mapping of options")
    kind = options.get("type", name)
    if not isinstance(kind, str) or kind not in KINDS:
        if "type" not in options:
            raise wrong_at((), name, f"{unknown_key(kind, KINDS)}, or another name with a `type`")
        hint = did_you_mean(str(kind), KINDS)
        raise wrong_at(("type",), kind, f"{kind!r} is not allowed; {hint}allowed: {', '.join(KINDS)}")
    allowed = ["type", *(f.name for f in dataclasses.fields(KINDS[kind]) if f.name != "name")]
    for key in options:
        if key not in allowed:
            raise wrong_at((key,), options[key], unknown_key(str(key), allowed, KINDS[kind].retired))
    own = {key: option for key, option in options.items() if key != "type"}
    made: Exporter = TypeAdapter(KINDS[kind]).validate_python({**own, "name": name})
    return made


def exporters_as_mapping(exporters: Iterable[Exporter]) -> dict[str, dict[str, Any]]:
    """What `exporters_from` makes them of: options by name, as JSON has them. Functions must be names."""
    return {exporter.name: _options(exporter) for exporter in exporters}


def _options(exporter: Exporter) -> dict[str, Any]:
    kind = next(name for name, kind in KINDS.items() if isinstance(exporter, kind))
    values = {f.name: getattr(exporter, f.name) for f in dataclasses.fields(exporter) if f.name != "name"}
    return {"type": kind, **values, "assets": [str(path) for path in exporter.assets]}


ExportersSection = Annotated[
    tuple[Exporter, ...], BeforeValidator(exporters_from), PlainSerializer(exporters_as_mapping)
]
"""The type of the job file's `exporters:`; the value is a tuple of exporters."""


def refuse_same_names(exporters: Iterable[Exporter]) -> None:
    """ValueError where two exporters have the same name, and so would write into the same folder."""
    names = [exporter.name for exporter in exporters]
    if len(set(names)) != len(names):
        raise ValueError(f"exporters need different names, not {', '.join(names)}")
