"""What the schema of a built-in model decides of its job: what is read, and how classes are weighted. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpc_train.config.builtin_model import (
    BuiltinModel,
    GBDTModel,
    ImageModel,
    LinearModel,
    TabularModel,
    WideDeepModel,
)
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.table_schema import TableSchema
from hpc_train.config.tree_job import mistakes_of_trees
from hpc_train.config.yaml_loader import Location
from hpc_train.errors import did_you_mean

if TYPE_CHECKING:
    from hpc_train.config.job import JobConfig

LARGEST_WEIGHT = 1e30
"""Of a class: float32 goes to 3e38."""
Found = tuple[Location, str]
"""A mistake: where in the job file, and what."""


def schema_of(model: str | BuiltinModel) -> TableSchema | None:
    """The schema of a model that has one, which has been read."""
    schema = None if isinstance(model, str | ImageModel) else model.schema
    assert schema is None or isinstance(schema, TableSchema), "read"
    return schema


def with_schema_named(described: dict[str, Any], name: str) -> dict[str, Any]:
    """A job as `model_dump` describes it, with `name` in place of its schema, where it has one."""
    model = described["model"]
    if not isinstance(model, dict) or "schema" not in model:
        return described
    return {**described, "model": {**model, "schema": name}}


def with_schema(job: JobConfig, schema: TableSchema) -> JobConfig:
    """`job`, of a built-in model, with its schema in place of the path, and what follows from it.

    The model gets the schema's columns by name, also where an input leaves them out or lists them, and the label.
    """
    model: Any = job.model
    model = dataclasses.replace(model, schema=schema)
    inputs = {"train": _reading(job.data.train, schema), "eval": _reading(job.data.eval, schema)}
    data = job.data.model_copy(update=inputs)
    evals = {name: dataclasses.replace(e, data=_reading(e.data, schema)) for name, e in job.evals.items()}
    train = job.train
    if train.class_weight == "balanced":
        train = dataclasses.replace(train, class_weight=_balanced(schema))
    return job.model_copy(update={"model": model, "data": data, "evals": evals, "train": train})


def mistakes_of_schema(job: JobConfig, schema: TableSchema) -> Iterator[Found]:
    """What of `job`, of a built-in model, does not go with `schema`."""
    model = job.model
    assert isinstance(model, TabularModel)
    at: Location = ("model", "schema")
    if schema.label is None:
        yield at, "the schema has no column with role label, which a model learns; give it one, and its `task`"
    if not schema.features:
        yield at, "the schema has no column that a model takes: numeric, categorical, text or date"
    if isinstance(model, LinearModel) and job.run.mixed_precision is not None:
        yield ("run", "mixed_precision"), "a linear model computes in float32; leave it out"
    if isinstance(model, GBDTModel):
        yield from mistakes_of_trees(job)
    inputs: dict[Location, HDF5Input] = {("data", "train"): job.data.train, ("data", "eval"): job.data.eval}
    inputs |= {("evals", name, "data"): section.data for name, section in job.evals.items()}
    for place, source in inputs.items():
        if source.map_fn is None:
            yield from _mistakes_of(source, schema, place)
    if job.train.class_weight is not None and (why_not := _why_not(job.train.class_weight, schema)):
        yield ("train", "class_weight"), why_not
    if isinstance(model, WideDeepModel):
        categorical = [name for name, column in schema.features.items() if column.role == "categorical"]
        for number, names in enumerate(model.crosses):
            for name in names:
                if name not in categorical:
                    hint = f"{did_you_mean(name, categorical)}allowed: {', '.join(categorical) or 'none'}"
                    yield ("model", "crosses", number), f"{name!r} is no categorical column of the schema; {hint}"


def _why_not(weights: Mapping[int, float] | str, schema: TableSchema) -> str:
    """Why classes cannot be weighed so; "" where they can."""
    last = len(schema.classes) - 1
    if last < 0:
        return f"is for classes, and the schema has none (task: {schema.task}); leave it out"
    if isinstance(weights, str):
        way = "give a mapping, or leave it out"
        return "" if _counts(schema) else f"{weights!r} is not allowed: the schema counts no classes; {way}"
    if unknown := [number for number in weights if number > last]:
        return f"there is no class {unknown[0]}; the schema's are counted from 0 to {last}"
    if large := [weight for weight in weights.values() if weight > LARGEST_WEIGHT]:
        return f"{large[0]:g} is not allowed; it should be less than or equal to {LARGEST_WEIGHT:g}"
    return "" if any(weights.get(number, 1.0) for number in range(last + 1)) else "all classes weigh 0; leave it out"


def _mistakes_of(source: HDF5Input, schema: TableSchema, place: Location) -> Iterator[Found]:
    features = list(schema.features)
    if source.features is not None:
        for name in source.features:
            if name not in features:
                hint = did_you_mean(name, features) or "leave `features` out, which names all"
                yield (*place, "features"), f"{name!r} is no feature of the schema; {hint.rstrip()}"
        if lacking := [name for name in features if name not in source.features]:
            named = ", ".join(map(repr, lacking[:5])) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
            way = "leave `features` out, which names all, or give what is not wanted role: ignored in the schema"
            yield (*place, "features"), f"{named} of the schema: missing; {way}"
    if source.label is not None and list(source.label) != [schema.label]:
        given = ", ".join(source.label) or "none"
        yield (*place, "label"), f"{given} is not the label of the schema; allowed: {schema.label}, or none given"


def _reading(source: HDF5Input, schema: TableSchema) -> HDF5Input:
    if source.map_fn is not None:
        return source
    given = source.features
    features = given if isinstance(given, dict) else {name: name for name in schema.features}
    label = source.label.values() if isinstance(source.label, dict) else (str(schema.label),)
    return dataclasses.replace(source, features=features, label=tuple(label))


def _counts(schema: TableSchema) -> tuple[int, ...]:
    summary = schema.columns[schema.label].statistics if schema.label is not None else None
    return summary.counts if summary is not None and schema.classes else ()


def _balanced(schema: TableSchema) -> dict[int, float]:
    """Weights by which all classes weigh the same, and all rows together as many as they are."""
    counts = _counts(schema)
    rows = sum(counts)
    return {number: rows / (len(counts) * count) for number, count in enumerate(counts) if count}
