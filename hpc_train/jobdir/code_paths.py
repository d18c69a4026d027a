"""What a job.yaml names in the copy of the job's code: relative to the job-dir, which may be renamed or moved."""

from __future__ import annotations

import copy
import glob
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpc_train.config.references import Kind, renamed
from hpc_train.jobdir.paths import CODE

FUNCTION = "function "
"""What an input that is no HDF5Input is described by begins with; the function's name follows."""


def relative_to(job_dir: Path, job: dict[str, Any]) -> dict[str, Any]:
    """`job`, as job.yaml describes it, with `code/…` for what it names in the job-dir's copy of the code. Local."""
    folders = [str(place / CODE) + "/" for place in (job_dir.absolute(), job_dir.resolve())]
    folders += [glob.escape(folder) for folder in folders]

    def relative(kind: Kind, name: str) -> str:
        folder = next((folder for folder in folders if name.startswith(folder)), None)
        return name if folder is None else f"{CODE}/{name.removeprefix(folder)}"

    return _changed(job, relative)


def absolute_in(job_dir: Path, job: dict[str, Any]) -> dict[str, Any]:
    """The same the other way round: where it lies now.

    Older versions wrote the path that the file had at the time: where the job-dir has a copy of it, that is the one,
    whatever has come to lie at that path since. Local.
    """
    job_dir = job_dir.absolute()

    def absolute(kind: Kind, name: str) -> str:
        if name.startswith(f"{CODE}/"):
            return f"{glob.escape(str(job_dir)) if kind == 'shard' else job_dir}/{name}"
        return _found(job_dir, name) if kind == "function" else name

    return _changed(job, absolute)


def _found(job_dir: Path, function: str) -> str:
    file, _, name = function.rpartition(":")
    path = Path(file)
    if path.suffix == ".py" and path.is_absolute():
        for place in reversed([at for at, part in enumerate(path.parts) if part == CODE]):
            if (there := job_dir.joinpath(*path.parts[place:])).is_file():
                return f"{there}:{name}"
    return function


def _changed(job: dict[str, Any], change: Callable[[Kind, str], str]) -> dict[str, Any]:
    without = {key: value for key, value in job.items() if key != "params"}  # which may hold what cannot be copied
    changed = renamed(without, change) if isinstance(job.get("model"), str | dict) else copy.deepcopy(without)
    for holder, key in _inputs(changed):
        if isinstance(source := holder.get(key), str) and source.startswith(FUNCTION):
            holder[key] = FUNCTION + change("function", source.removeprefix(FUNCTION))
    return {key: changed.get(key, value) for key, value in job.items()}


def _inputs(job: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Where a program's job has functions that read data."""
    data, evals = job.get("data"), job.get("evals")
    if isinstance(data, dict):
        yield from ((data, key) for key in ("train", "eval"))
    for section in evals.values() if isinstance(evals, dict) else ():
        if isinstance(section, dict):
            yield section, "data"
