"""The data of a job that lies elsewhere by now: `--data` of the commands that read a job-dir."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.job import JobConfig
from hpc_train.data.hdf5.shards import matches
from hpc_train.errors import UserError, did_you_mean
from hpc_train.model.program_job import ProgramJob

FIRST = "eval"
"""What the first evaluation set is called where it has no name."""
_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=(.+)", re.DOTALL)


def with_data(job: JobConfig | ProgramJob, given: Sequence[str], only: str | None = None) -> JobConfig | ProgramJob:
    """`job` with other shards for its evaluation sets.

    Args:
        given: PATTERN or NAME=PATTERN each, relative to the working directory; several of a set are read together.
        only: The set that is used alone, which a PATTERN without a name is for.

    Raises:
        UserError: There is no such set, it is not clear which one is meant, it is no HDF5Input, or a pattern matches
            nothing.
    """
    if not given:
        return job
    sets = input_names(job)
    patterns: dict[str, list[str]] = {}
    for text in given:
        name, pattern = _parsed(text, sets, only)
        place = Path(pattern).expanduser()
        found = str(place) if place.is_absolute() else str(Path(glob.escape(str(Path.cwd()))) / place)
        if not matches(found):
            raise UserError(f"--data: {pattern} matches no file")
        patterns.setdefault(name, []).append(found)
    described = job.model_dump(mode="json")
    for name, shards in patterns.items():
        holder, key = (described["data"], "eval") if name == next(iter(sets)) else (described["evals"][name], "data")
        if not isinstance(holder[key], dict):
            raise UserError(f"--data: the evaluation set {name} is read by a {holder[key]}, not from shards")
        holder[key]["shards"] = shards
    return type(job).model_validate(described)


def input_names(job: JobConfig | ProgramJob) -> Mapping[str, Any]:
    """The evaluation sets by name, the first one first, with what each reads."""
    further: Mapping[str, Any] = job.evals
    return {job.eval.name or FIRST: job.data.eval, **{name: section.data for name, section in further.items()}}


def _parsed(text: str, sets: Mapping[str, Any], only: str | None) -> tuple[str, str]:
    first, *others = sets
    match = _NAMED.fullmatch(text)
    if match and match[1] in sets:
        return match[1], match[2]
    if match and not matches(text):
        near = did_you_mean(match[1], sets)
        raise UserError(f"--data: the job has no evaluation set {match[1]!r}; {near}it has: {', '.join(sets)}")
    if only in sets:
        return str(only), text
    if others:
        raise UserError(f"--data: {text!r}: the job has several evaluation sets: give NAME={text}; {', '.join(sets)}")
    return first, text


def elsewhere(source: HDF5Input, name: str, sets: Sequence[str]) -> str:
    """What to type where the shards of a set are not found; empty where they are there."""
    missing = next((pattern for pattern in source.shards if not matches(pattern)), None)
    if missing is None:
        return ""
    which = f"{name}=" if len(sets) > 1 else ""
    return f"; if the data has moved, name its place: --data '{which}PATH/{Path(missing).name}'"
