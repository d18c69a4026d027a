"""What a job file can say of a job that trains trees (`builtin: gbdt`), and what it cannot. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpc_train.config.exporters import Exporter
from hpc_train.config.yaml_loader import Location

if TYPE_CHECKING:
    from hpc_train.config.job import JobConfig

FOLLOWED: Mapping[str, frozenset[str]] = {
    "data": frozenset(("shards", "features", "label", "external", "batch_size", "shuffle", "seed")),
    "run": frozenset(
        (
            "allreduce",
            "best_metric",
            "best_mode",
            "keep_checkpoint_every_n_hours",
            "keep_checkpoint_max",
            "log_step_count_steps",
            "on_export_error",
            "report",
            "save_checkpoints_secs",
            "save_checkpoints_steps",
            "save_summary_steps",
            "stall_timeout_secs",
            "tf_random_seed",
        )
    ),
    "train": frozenset(("class_weight", "early_stopping", "max_steps")),
    "eval": frozenset(("name", "steps", "start_delay_secs", "throttle_secs", "eval_every_checkpoint", "exporters")),
    "exporter": frozenset(("name", "metric", "mode", "exports_to_keep")),
}
"""Keys by section that trees follow, or that make no difference to them."""
WHY = "is not for trees (builtin: gbdt); leave it out"
AFTER_EACH = "trees are evaluated after each checkpoint; give 0, or leave it out"
EVALUATED: Mapping[str, tuple[str, tuple[float | None, ...]]] = {
    "steps": ("trees are evaluated on all rows; give null", (None, 100)),
    "start_delay_secs": (AFTER_EACH, (0, 120)),
    "throttle_secs": (AFTER_EACH, (0, 600)),
}
"""Keys of evaluations of which one value and the default are taken, and why no other one is."""


def mistakes_of_trees(job: JobConfig) -> Iterator[tuple[Location, str]]:
    """What of `job` trees do not follow, where in the file and what."""
    yield from _others(job.data.train, ("data", "train"), "data")
    yield from _others(job.data.eval, ("data", "eval"), "data")
    yield from _others(job.run, ("run",), "run")
    yield from _others(job.train, ("train",), "train")
    yield from _of_evaluation(job.eval, ("eval",))
    if job.evals:
        yield ("evals",), "further evaluation sets are not for trees (builtin: gbdt); leave them out"
    if job.warm_start_from is not None:
        yield ("warm_start_from",), WHY
    if job.train.max_steps is None:
        yield ("train", "max_steps"), "trees need a number of rounds; give one"


def _of_evaluation(section: Any, at: Location) -> Iterator[tuple[Location, str]]:
    yield from _others(section, at, "eval")
    for name, (said, allowed) in EVALUATED.items():
        if getattr(section, name) not in allowed:
            yield (*at, name), said
    exporters: tuple[Exporter, ...] = section.exporters
    for exporter in exporters:
        yield from _others(exporter, (*at, "exporters", exporter.name), "exporter")


def _others(options: Any, at: Location, section: str) -> Iterator[tuple[Location, str]]:
    for field in dataclasses.fields(options):
        if field.name in FOLLOWED[section]:
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if default is dataclasses.MISSING:
            continue
        if getattr(options, field.name) != default:
            yield (*at, field.name), WHY
