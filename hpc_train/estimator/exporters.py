"""Exports the trained model as a SavedModel. For the chief alone."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_train.cluster.quiet import without_chatter
from hpc_train.monitoring.files import write_json

if TYPE_CHECKING:
    import keras

ABOUT_FILE = "hpc_train.json"


def export_saved_model(
    model: keras.Model, folder: Path, step: int, checkpoint_time: float, metrics: dict[str, float]
) -> Path:
    """Writes `folder/<unix seconds>/`, a SavedModel with the signature `serving_default`, and returns it.

    It appears whole, by rename, with a file hpc_train.json that tells the step, when its checkpoint was taken, and the
    metrics. The signature takes the model's inputs by name, with any number of rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / str(int(time.time()))
    while final.exists():
        final = folder / str(int(final.name) + 1)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        with without_chatter():
            model.export(str(temporary), format="tf_saved_model", verbose=False)
        write_json(temporary / ABOUT_FILE, {"step": step, "checkpoint_time": checkpoint_time, "metrics": metrics})
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def exported_from(folder: Path, checkpoint_time: float) -> Path | None:
    """The newest export in `folder` of the checkpoint taken at `checkpoint_time`, or None where there is none."""
    for about in sorted(folder.glob(f"[0-9]*/{ABOUT_FILE}"), reverse=True):
        if json.loads(about.read_text()).get("checkpoint_time") == checkpoint_time:
            return about.parent
    return None
