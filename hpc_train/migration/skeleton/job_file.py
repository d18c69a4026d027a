"""job.yaml: the settings of a program where a job file has them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from hpc_train.arguments import shown
from hpc_train.config.job import JobConfig
from hpc_train.config.types import NAME_PATTERN
from hpc_train.config.yaml_loader import dump_yaml
from hpc_train.migration.skeleton.model_code import ModelCode
from hpc_train.migration.skeleton.model_file import FUNCTION, MODEL_FILE
from hpc_train.migration.skeleton.settings import Settings, params_given
from hpc_train.migration.source import Source
from hpc_train.text import visible

JOB_FILE = "job.yaml"
_LONGEST = 64
"""Of a name."""
_MAX_STEPS = 1000
"""Where the program shows no end."""
_PLAIN = (bool, int, float, str, list)


def job_file(sources: Sequence[Source], name: str, model: ModelCode) -> str:
    """The text of job.yaml, which load_job takes. What a job file would refuse is left out, and said in a comment.

    Args:
        name: What the job is called.
    """
    settings = Settings()
    for source in sources:
        settings.read(source)
    found = settings.found
    params = {key: value for source in sources for key, value in params_given(source).items()}
    params |= {key: value for key, value in model.params.items() if value is not None or key not in params}
    features = {"features": {feature: feature for feature in model.features}} if model.features else {}
    data = {
        part: {"shards": shards, **features, **found.get("data", {}).get(part, {})}
        for part, shards in (("train", "data/train-*.h5"), ("eval", "data/test-*.h5"))
    }
    todo = ["data.*.shards: make them by `hpc-train shard data/ SOURCES --split` (docs/shards.md)"]
    if "max_steps" not in found.get("train", {}) and "epochs" not in data["train"]:
        todo.append("train.max_steps: the program does not show when training ends")
    todo += settings.todo
    todo += [f"params.{key}: the program does not show its value" for key, value in params.items() if value is None]
    job = {
        "name": name,
        "model": f"{MODEL_FILE}:{FUNCTION}",
        "params": {key: value for key, value in params.items() if value is None or isinstance(value, _PLAIN)},
        "data": data,
        **{section: found.get(section) for section in ("run", "train", "eval", "warm_start_from")},
    }
    job = {key: value for key, value in job.items() if value}
    todo += [f"{key} is not allowed here and was left out: {value}" for key, value in _without_refused(job)]
    head = [f"# The settings of {name}; docs/job_file.md has all keys.", *(f"# TODO: {each}" for each in todo)]
    return "\n".join(map(visible, head)) + "\n" + dump_yaml(job, lists_in_line=True)


def name_of(text: str) -> str:
    """A job's name like `text`."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)[:_LONGEST]
    return name if re.match(NAME_PATTERN, name) else "job"


def _without_refused(job: dict[str, Any]) -> list[tuple[str, str]]:
    """Takes from `job` what JobConfig refuses; returns each key with its value."""
    refused: list[tuple[str, str]] = []
    while True:
        if "epochs" not in job["data"]["train"]:
            job.setdefault("train", {}).setdefault("max_steps", _MAX_STEPS)
        try:
            JobConfig.model_validate(job)
            return refused
        except ValidationError as error:
            problem = error.errors()[0]
            key = _remove(job, tuple(map(str, problem["loc"])))
            refused.append((".".join(key), shown(problem["input"])))


def _remove(job: dict[str, Any], location: tuple[str, ...]) -> tuple[str, ...]:
    """Removes the deepest value that `location` leads to; returns where it was."""
    place, key = job, location[0]
    for part in location[1:]:
        inner = place.get(key)
        if not isinstance(inner, dict) or part not in inner:
            break
        place, key = inner, part
    if (place is job and key in ("name", "model", "data")) or key not in place:
        raise AssertionError(f"{location} of a job file that was made here")
    del place[key]
    return location
