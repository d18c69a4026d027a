"""A job's settings by their path, such as `data.train.batch_size`: compared between jobs, and between runs of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Settings = Mapping[str, str]
"""Text by path."""

GIVEN_BY_NAME = (
    "params.",
    "eval.exporters.",
    "eval[",
    "evals.",
    "train.early_stopping.",
    "run.mesh.",
    "warm_start_from.",
    "optimizer.",
    "tune.space.",
    "tune.early_stopping.",
    "tune.first",
)
"""Settings that a job has or has not; elsewhere one that is missing was unknown to the version that ran the job."""
OF_THE_PLACE = ("name", "run.model_dir")
MAX_VALUE, MAX_BYTES = 200, 1 << 20
TRAINED_WITH = (
    "model",
    "params.",
    "optimizer",
    "data.train",
    "run.mixed_precision",
    "run.accumulate_steps",
    "run.sparse_gradients",
    "train.class_weight",
)
"""What matters only while steps are made."""
NO_EFFECT = {
    "warm_start_from": "the variables are those of the checkpoint",
    "optimizer.initial_scale": "the loss scale is that of the checkpoint",
    "run.tf_random_seed": "the model's random states are those of the checkpoint",
}
"""What a run that goes on from a checkpoint does not follow, and why."""


@dataclass(frozen=True)
class Change:
    """A setting that is another one than in the run that made a checkpoint.

    Attributes:
        before, now: As text; None where there was or is none.
        ignored: Why it has no effect; empty where it has.
    """

    key: str
    before: str | None
    now: str | None
    ignored: str = ""


def flattened(job: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """The settings of a job as text, by their path. Pure."""
    found: dict[str, str] = {}
    for key, value in job.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and value:
            found |= flattened(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for number, item in enumerate(value):
                found |= flattened(item, f"{path}[{item.get('name') or number}].")
        else:
            found[path] = _plain(value)
    return found


def settings_of(job: Mapping[str, Any]) -> dict[str, str]:
    """The same of what Python holds, fit to be kept: long values are cut, with a digest; objects are their type's name.

    Where that is more than 1 MiB of JSON altogether, `params` is one digest. Pure.
    """
    found = {key: _in_short(value) for key, value in flattened(_as_json(job)).items()}
    if len(json.dumps(found)) > MAX_BYTES:
        params = {key: value for key, value in found.items() if key.startswith("params.")}
        found = {key: value for key, value in found.items() if key not in params}
        found["params"] = _digest(json.dumps(params))
    return found


def differing(jobs: Sequence[Settings]) -> dict[str, list[str | None]]:
    """The settings in which `jobs` differ, with the value of each; None where it has none. Pure."""
    found = {}
    for key in dict.fromkeys(key for settings in jobs for key in settings):
        values = [settings.get(key) for settings in jobs]
        given = {value for value, settings in zip(values, jobs, strict=True) if settings}
        if len(given if key.startswith(GIVEN_BY_NAME) else given - {None}) > 1:
            found[key] = values
    return found


def changes(before: Settings | None, now: Settings, is_over: bool = False) -> list[Change]:
    """What is asked for otherwise `now` than in the run that made the checkpoint to go on from. Pure.

    Args:
        before: Of that run; None: not known. is_over: No further step will be made.
    """
    found = []
    for key, (then, value) in differing([before or {}, now]).items():
        if key not in OF_THE_PLACE:
            ignored = next((why for start, why in NO_EFFECT.items() if f"{key}.".startswith(f"{start}.")), "")
            if is_over and key.startswith(TRAINED_WITH):
                ignored = "nothing is left to train"
            found.append(Change(_in_short(key), then and _in_short(then), value, ignored))
    return found


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "[]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _as_json(value.tolist())
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return value if is_plain else str(value) if hasattr(value, "__fspath__") else type(value).__qualname__


def _in_short(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:40]}… ({len(text):,} characters, {_digest(text)})"


def _digest(text: str) -> str:
    return f"sha256 {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]}"
