"""What a job file names beside itself: functions, shards, assets, a checkpoint to warm-start from. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import BaseModel

from hpc_train.config.yaml_loader import Location

Kind = Literal["function", "shard", "asset", "source"]

_KINDS: dict[str, Kind] = {
    "map_fn": "function",
    "serving_fn": "function",
    "compare_fn": "function",
    "hooks": "function",
    "saving_listeners": "function",
    "shards": "shard",
    "external": "shard",
    "assets": "asset",
    "ckpt_to_initialize_from": "source",
}
_OF_MODELS: dict[str, Kind] = {"schema": "asset", "weights": "source"}
"""Of built-in ones."""
_NAMES_OF_OTHERS = "var_name_to_prev_var_name"
_DATASETS = ("features", "label")
_SECTIONS = ("data", "train", "eval", "evals", "warm_start_from")


def names_in(job: dict[str, Any]) -> Iterator[tuple[Location, Kind, str]]:
    """Where a job, as `JobConfig.model_dump` gives it, names what, and how; its model first."""
    model = job["model"]
    if isinstance(model, str):
        yield ("model",), "function", model
    else:
        for key, kind in _OF_MODELS.items():
            if isinstance(model.get(key), str):
                yield ("model", key), kind, model[key]
    for section in _SECTIONS:
        yield from _within(job.get(section), (section,), None)


def names_of(job: BaseModel) -> list[tuple[Location, Kind, str]]:
    """The same of a job file that has been read; that of a program names nothing but its module."""
    described = job.model_dump(mode="json")
    return list(names_in(described)) if "model" in described else []


def _within(value: Any, at: Location, kind: Kind | None) -> Iterator[tuple[Location, Kind, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == _NAMES_OF_OTHERS or (key in _DATASETS and _is_data(at)):
                continue
            yield from _within(item, (*at, key), _KINDS.get(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _within(item, (*at, number), kind)
    elif kind is not None and isinstance(value, str):
        yield at, kind, value


def _is_data(at: Location) -> bool:
    """Whether an HDF5Input is at this place; evaluation sets and exporters may be called as its keys are."""
    return at in (("data", "train"), ("data", "eval")) or (len(at) == 3 and at[0] == "evals" and at[2] == "data")


def renamed(job: dict[str, Any], rename: Callable[[Kind, str], str]) -> dict[str, Any]:
    """`job` with another name for each that is in it."""
    changed = copy.deepcopy(job)
    for (*around, last), kind, name in names_in(job):
        holder: Any = changed
        for part in around:
            holder = holder[part]
        holder[last] = rename(kind, name)
    return changed
