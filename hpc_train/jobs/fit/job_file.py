"""The job.yaml that `hpc-train fit` makes: how a model of a table is trained, where nobody says it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_train.config.overrides import overridden
from hpc_train.config.table_schema import Task
from hpc_train.config.yaml_loader import Document, dump_yaml

ABOUT = """\
# Made by hpc-train fit. Change what you like before it is trained, and submit it: hpc-train submit job.yaml
# All keys are in docs/job_file.md, options of `model` in docs/builtin_models.md.
"""
EVALUATIONS = 20
"""While training, where it is not ended before."""
PATIENCE = 4
"""Evaluations without a smaller loss that end training."""
EPOCHS = 30
ROUNDS, ROUNDS_BETWEEN, ROUNDS_OF_PATIENCE = 500, 25, 50
"""Of trees: at most, between evaluations, and without a smaller loss before training ends."""
LEAST_STEPS, MOST_STEPS = 1_000, 20_000
GOALS: dict[Task, tuple[str, str]] = {
    "binary": ("auc", "max"),
    "classes": ("accuracy", "max"),
    "regression": ("rmse", "min"),
    "counts": ("poisson_deviance", "min"),
}
"""The metric by which the best evaluation is chosen, and whether it is the largest."""
_BATCHES = ((50_000, 64), (500_000, 256), (5_000_000, 1024))
"""Rows of a step over all ranks, up to so many rows of the table; beyond that LARGEST_BATCH."""
LARGEST_BATCH = 4096


def batch_of(rows: int) -> int:
    """Rows of a step over all ranks."""
    wanted = next((batch for most, batch in _BATCHES if rows <= most), LARGEST_BATCH)
    return min(wanted, rows) if rows else wanted


def steps_of(rows: int) -> int:
    """Steps, where nothing ends training before."""
    wanted = EPOCHS * -(-rows // batch_of(rows))
    return -(-min(max(wanted, LEAST_STEPS), MOST_STEPS) // EVALUATIONS) * EVALUATIONS


def job_document(
    path: Path, name: str, model: str, task: Task, rows: int, ranks: int, settings: Sequence[str]
) -> Document:
    """What stands in the job file `path`, which is to be made.

    Args:
        rows: For training.
        settings: `KEY=VALUE` each, laid over it.

    Raises:
        UserError: A setting is not `KEY=VALUE`.
    """
    metric, mode = GOALS[task]
    train: dict[str, Any] = {"shards": "data/train-*.h5"}
    if model == "gbdt":
        steps, every, patience = ROUNDS, ROUNDS_BETWEEN, ROUNDS_OF_PATIENCE
    else:
        steps = steps_of(rows)
        every = steps // EVALUATIONS
        patience = PATIENCE * every
        train |= {"batch_size": max(1, batch_of(rows) // ranks), "seed": 1}
    job: dict[str, Any] = {
        "name": name,
        "model": {"builtin": model, "schema": "schema.yaml"},
        "data": {
            "train": train,
            "eval": {"shards": "data/test-*.h5", "batch_size": 1024},
        },
        "run": {"save_checkpoints_steps": every, "best_metric": metric, "best_mode": mode, "tf_random_seed": 1},
        "train": {
            "max_steps": steps,
            "early_stopping": {
                "stop_if_no_decrease": {
                    "metric_name": "loss",
                    "max_steps_without_decrease": patience,
                    "run_every_steps": every,
                }
            },
        },
        "eval": {
            "steps": None,
            "start_delay_secs": 0,
            "throttle_secs": 0,
            "exporters": {"best": {"metric": metric, "mode": mode, "exports_to_keep": 1}},
        },
        "resources": {"ranks_per_node": ranks},
    }
    return overridden(Document(path, job, {}, ()), settings)


def text_of(document: Document) -> str:
    """The file."""
    return ABOUT + dump_yaml(document.value, lists_in_line=True)
