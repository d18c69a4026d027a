"""The case `restore` of benchmarks/model_parallel.py: a checkpoint of a mesh restored at others, by fresh processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from support.launch import Ranks
from support.page import Section, Table, Target
from support.records import Found, Record, Sample, records_of
from support.results import Results

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention

BENCHMARK, LIMIT_SECS = "model_parallel", 600.0
SAVED, RESTORED = (2, 2), ((1, 2), (1, 1), (4, 1))
"""Meshes, as data x model."""
STEPS = 3
TEXT = (
    "A job of 2x2 ranks (data x model), with the layers of ht.parallel, a ShardedEmbedding and Adam with "
    "run.shard_optimizer, saves after three steps. A copy of it goes on as each of the other meshes, by processes of "
    "its own, for one step of rows without numbers, which run.on_nan: skip leaves out, and saves. Variables of the "
    "model and of the optimizer are compared, to the bit, with those that were saved first."
)


def measured(results: Results, folder: Path, quick: bool) -> Iterator[Record]:
    """A record of each mesh that restores: how many variables are the same."""
    found = results.once("restore", partial(told, *((16, RESTORED[:2]) if quick else (512, RESTORED)), folder))
    for mesh, about in found.items():
        data, model = map(int, mesh.split("x"))
        config = {"part": "restore", "mesh": mesh, **about}
        sample = Sample(f"restored at {mesh}", [float(about["same"])], {}, data * model, config)
        yield from records_of(BENCHMARK, "variables", [sample])


def told(width: int, meshes: Sequence[tuple[int, int]], folder: Path) -> dict[str, dict[str, Any]]:
    """By mesh, how its variables compare with those that were saved; see `compared`."""
    job_dir = folder / "restore"
    try:
        train(job_dir, width, SAVED, STEPS, folder)
        saved, found = variables(job_dir, STEPS), {}
        for mesh in meshes:
            copy = folder / "restored"
            shutil.copytree(job_dir, copy)
            try:
                train(copy, width, mesh, STEPS + 1, folder)
                found["x".join(map(str, mesh))] = compared(variables(copy, STEPS + 1), saved)
            finally:
                shutil.rmtree(copy)
    finally:
        shutil.rmtree(job_dir, ignore_errors=True)
    return found


def train(job_dir: Path, width: int, mesh: tuple[int, int], steps: int, folder: Path) -> None:
    """A job up to `steps` steps, of which STEPS change the model."""
    numbers = (width, *mesh, steps, STEPS)
    program = ["-m", "divided.restore_program", str(job_dir), *map(str, numbers)]
    with Ranks(mesh[0] * mesh[1], program, folder) as started:
        started.wait(LIMIT_SECS)


def variables(job_dir: Path, step: int) -> dict[str, np.ndarray]:
    """Those of a checkpoint, of the model and of the optimizer."""
    snapshot = CheckpointManager(job_dir / "checkpoints", Retention()).load(step)
    return {**snapshot.model, **{f"optimizer {name}": array for name, array in snapshot.optimizer.items()}}


def compared(found: Mapping[str, np.ndarray], saved: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """How many of `saved` there are, how many are the `same` to the bit, and the names of those that are not. Pure."""
    others = [
        name
        for name in dict.fromkeys((*saved, *found))
        if name not in found
        or name not in saved
        or (found[name].shape, found[name].dtype) != (saved[name].shape, saved[name].dtype)
        or found[name].tobytes() != saved[name].tobytes()
    ]
    sizes = sum(array.nbytes for array in saved.values())
    own = {"of_optimizer": sum(name.startswith("optimizer ") for name in saved), "nbytes": sizes}
    return {"variables": len(saved), **own, "same": len({*saved} - {*others}), "others": others}


def targets(found: Found) -> list[Target]:
    """What is to be reached. Pure."""
    parts = [
        (one.config["mesh"], f"{one.value:.0f} of {one.config['variables']}", not one.config["others"])
        for one in found.where(part="restore")
    ]
    return [Target("Variables saved by 2x2 ranks, restored by others", "all the same to the bit", parts)]


def section(found: Found) -> Section:
    """All that was compared. Pure."""
    rows = [
        (
            one.config["mesh"],
            f"{one.value:.0f}",
            *(f"{one.config[name]:,}" for name in ("variables", "of_optimizer", "nbytes")),
            ", ".join(one.config["others"][:3]),
        )
        for one in found.where(part="restore")
    ]
    header = ("restored at", "the same", "variables", "of the optimizer", "bytes", "others")
    return Section("Checkpoints at other meshes", [TEXT], [], [Table(header, rows)])
