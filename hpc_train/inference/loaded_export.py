"""An export as it is loaded to predict, and which one a folder means."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.config.types import are_paddings
from hpc_train.data.writing.prediction_files import InputSpec
from hpc_train.distributed.silence import without_chatter
from hpc_train.errors import UserError
from hpc_train.export.export_dir import ABOUT_FILE
from hpc_train.files import read_bytes
from hpc_train.lazy import tf
from hpc_train.telemetry.json_files import read_json

SIGNATURE = "serving_default"
MAX_GRAPH_BYTES = 2 << 30
"""A protocol buffer is no larger."""


class LoadedExport:
    """An exported model's signature `serving_default`, loaded with TensorFlow alone.

    Args:
        path: The SavedModel, or an exporter's folder, of which the newest export is taken.

    Attributes:
        path: The SavedModel, absolute. inputs: what each input takes, in the order in which the model was given them.
        datasets: The dataset that each input was trained on, where the export records another name. step: of the model.
        pad: What rows of different lengths were padded with in training, by dataset.

    Raises:
        UserError: There is no SavedModel, or none with that signature.
    """

    def __init__(self, path: Path) -> None:
        self.path = newest_export(path).absolute()
        with without_chatter():
            try:
                self._loaded = tf.saved_model.load(str(self.path))
            except (OSError, ValueError, tf.errors.OpError) as error:
                raise UserError(f"{self.path}: cannot be loaded as a SavedModel: {error}") from None
        if SIGNATURE not in self._loaded.signatures:
            has = ", ".join(self._loaded.signatures) or "none"
            raise UserError(f"{self.path}: has no signature {SIGNATURE}; it has {has}")
        self._call = self._loaded.signatures[SIGNATURE]
        self._specs = self._call.structured_input_signature[1]
        about = read_json(self.path / ABOUT_FILE)
        order = [name for name in about.get("input_order", []) if name in self._specs]
        names = order if len(order) == len(self._specs) else sorted(self._specs)
        known = about.get("signature", {}).get("inputs", {})
        self.datasets = {name: known.get(name, {}).get("dataset", name) for name in names}
        self.inputs = {name: _input_spec(self._specs[name]) for name in names}
        self.step: int | None = about.get("step")
        self.pad: dict[str, Any] = _recorded_padding(about)

    def digest(self) -> str:
        """Of the graph and the variables, whose index holds a checksum of each."""
        digest = hashlib.sha256()
        for name in ("saved_model.pb", "variables/variables.index"):
            if (self.path / name).exists():
                digest.update(read_bytes(self.path / name, MAX_GRAPH_BYTES, follow=True))
        return digest.hexdigest()[:16]

    def predict(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name for inputs by name, `[B, ...]` each."""
        inputs = {name: tf.constant(array, dtype=self._specs[name].dtype) for name, array in arrays.items()}
        return {name: output.numpy() for name, output in sorted(self._call(**inputs).items())}


def newest_export(path: Path) -> Path:
    """`path`, or the newest export in it, where it is an exporter's folder; UserError where it is neither."""
    if (path / "saved_model.pb").exists():
        return path
    if not path.is_dir():
        raise UserError(f"{path}: there is no such folder; an export is JOBDIR/export/NAME/NUMBER")
    exports = [p for p in path.iterdir() if p.name.isdigit() and (p / "saved_model.pb").exists()]
    if not exports:
        raise UserError(f"{path}: is no SavedModel, nor a folder of them; an export is JOBDIR/export/NAME/NUMBER")
    return max(exports, key=lambda p: int(p.name))


def _input_spec(spec: Any) -> InputSpec:
    shape = None if spec.shape.rank is None else tuple(spec.shape.as_list()[1:])
    return InputSpec(np.dtype(spec.dtype.as_numpy_dtype).name, shape)


def _recorded_padding(about: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return are_paddings(about["data"]["pad"])
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}
