"""What a job file names beside itself: functions, shards, assets, a checkpoint to warm-start from. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from hpc_train.config.yaml_loader import Location

Kind = Literal["function", "shard", "asset", "source"]

_KINDS: dict[str, Kind] = {
    "map_fn": "function",
    "serving_fn": "function",
    "compare_fn": "function",
    "hooks": "function",
    "saving_listeners": "function",
    "shards": "shard",
    "assets": "asset",
    "ckpt_to_initialize_from": "source",
}
_NAMES_OF_OTHERS = "var_name_to_prev_var_name"
_SECTIONS = ("data", "train", "eval", "evals", "warm_start_from")


def names_in(job: dict[str, Any]) -> Iterator[tuple[Location, Kind, str]]:
    """Where a job, as `JobConfig.model_dump` gives it, names what, and how; its model first."""
    yield ("model",), "function", job["model"]
    for section in _SECTIONS:
        yield from _within(job.get(section), (section,), None)


def _within(value: Any, at: Location, kind: Kind | None) -> Iterator[tuple[Location, Kind, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == _NAMES_OF_OTHERS:
                continue
            yield from _within(item, (*at, key), _KINDS.get(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _within(item, (*at, number), kind)
    elif kind is not None and isinstance(value, str):
        yield at, kind, value


def renamed(job: dict[str, Any], rename: Callable[[Kind, str], str]) -> dict[str, Any]:
    """`job` with another name for each that is in it."""
    changed = {section: _renamed(job[section], None, rename) for section in _SECTIONS if section in job}
    return {**job, **changed, "model": rename("function", job["model"])}


def _renamed(value: Any, kind: Kind | None, rename: Callable[[Kind, str], str]) -> Any:
    if isinstance(value, dict):
        return {
            key: item if key == _NAMES_OF_OTHERS else _renamed(item, _KINDS.get(key), rename)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_renamed(item, kind, rename) for item in value]
    return rename(kind, value) if kind is not None and isinstance(value, str) else value
