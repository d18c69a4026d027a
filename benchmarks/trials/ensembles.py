"""The ensembles that studies.py trains, and how far each export is from its members; a program, too, for the latter."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from support.launch import environment
from support.usage import tell

ENSEMBLE, SLOTS = "runs/ensemble", 2
COMPARED = 2000
"""Images of the test set."""


def ensemble(folder: Path, name: str, settings: Sequence[str]) -> dict[str, Any]:
    """Trains the ensemble that `settings` make of the demo's job in `folder`, and combines it.

    Returns:
        secs; `mean` and `each`: metrics of the model and of its members; `difference`: the largest one between what the
        export gives and the mean of what its members give, each restored by itself.
    """
    words = ["ensemble", "tune.yaml", "--ensemble", f"{ENSEMBLE}_{name}", "--ranks", "1", "--parallel", f"{SLOTS}"]
    begun = time.perf_counter()
    _run([*words, *(word for setting in settings for word in ("--set", setting))], folder)
    secs, path = time.perf_counter() - begun, folder / f"{ENSEMBLE}_{name}"
    result = json.loads((path / "ensemble.json").read_text())
    done = _run([], folder, [str(Path(__file__)), str(path)])
    told = {"secs": secs, "mean": result["mean"], "each": result["each"], "difference": float(done.split()[-1])}
    best = min(one["loss"] for one in told["each"])
    tell(f"{name}: loss {told['mean']['loss']:.4f}, the best member's {best:.4f}, difference {told['difference']:.1e}")
    return told


def _run(words: Sequence[str], folder: Path, program: Sequence[str] = ("-m", "hpc_train")) -> str:
    env = environment({"HPC_TRAIN_PROGRESS": "lines"})
    done = subprocess.run([sys.executable, *program, *words], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout


def difference(path: Path) -> float:
    """The largest difference between the export in an ensemble's folder and its members' mean."""
    import tensorflow as tf

    from hpc_train.export.from_checkpoint import restored_model

    result, given = json.loads((path / "ensemble.json").read_text()), []
    with h5py.File(next(path.parent.parent.glob("data/test-*.h5"))) as file:
        images = tf.constant(file["image"][:COMPARED])
    for member in result["members"]:
        restored = restored_model(path / "trials" / f"{member['trial']:04d}", member["step"])
        given.append(tf.nn.softmax(restored.model(images, training=False)).numpy().astype(np.float64))
    serve = tf.saved_model.load(str(path / result["export"])).signatures["serving_default"]
    return float(np.abs(serve(image=images)["mean"].numpy() - np.mean(given, axis=0)).max())


if __name__ == "__main__":
    print(difference(Path(sys.argv[1])))
