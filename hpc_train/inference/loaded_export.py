"""An export as it is loaded to predict, and which one a folder means."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpc_train.config.table_schema import read_schema
from hpc_train.config.types import are_paddings
from hpc_train.data.writing.prediction_files import InputSpec
from hpc_train.distributed.silence import without_chatter
from hpc_train.errors import UserError
from hpc_train.export.export_dir import ABOUT_FILE
from hpc_train.export.exporters import KERAS_FILE
from hpc_train.export.signature import Signature, default_serving
from hpc_train.export.table_shards import INDEX_FILE, TABLES
from hpc_train.files import read_bytes
from hpc_train.inference.exported_model import load_exported_model, newest_export
from hpc_train.jobdir.paths import SCHEMA_FILE
from hpc_train.lazy import tf
from hpc_train.telemetry.json_files import read_json
from hpc_train.trees.booster import MODEL_FILE, OUTPUTS, booster_of, matrix_of, predicted, units_of
from hpc_train.trees.columns import TreeColumns, digest_of

SIGNATURE = "serving_default"
MAX_GRAPH_BYTES = 2 << 30
"""A protocol buffer is no larger."""


class LoadedExport(ABC):
    """An export that can predict.

    Attributes:
        path: Its folder, absolute. inputs: what each input takes, in the order in which the model was given them.
        datasets: The dataset that each input was trained on. step: of the model, None where it is not recorded.
        pad: What rows of different lengths were padded with in training, by dataset.
    """

    path: Path
    inputs: Mapping[str, InputSpec]
    datasets: Mapping[str, str]
    step: int | None
    pad: Mapping[str, Any]

    @abstractmethod
    def digest(self) -> str:
        """Of all that decides what it predicts."""

    @abstractmethod
    def predict(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name for inputs by name, `[B, ...]` each."""


def load_export(path: Path, threads: int = 1) -> LoadedExport:
    """The export `path`, or the newest one of an exporter's folder. Local.

    Args:
        threads: With which trees predict.

    Raises:
        UserError: There is none, or it cannot be loaded.
    """
    found = newest_export(path).absolute()
    if (found / MODEL_FILE).exists():
        return TreeExport(found, threads)
    return ShardsExport(found) if (found / TABLES).is_dir() else KerasExport(found)


class KerasExport(LoadedExport):
    """An exported model's signature `serving_default`, loaded with TensorFlow alone.

    Raises:
        UserError: There is no SavedModel, or none with that signature.
    """

    _decisive: ClassVar[tuple[str, ...]] = ("saved_model.pb", "variables/variables.index")

    def __init__(self, path: Path) -> None:
        self.path = path
        about = read_json(self.path / ABOUT_FILE)
        self._call, self._specs = self._load(about)
        order = [name for name in about.get("input_order", []) if name in self._specs]
        names = order if len(order) == len(self._specs) else sorted(self._specs)
        known = about.get("signature", {}).get("inputs", {})
        self.datasets = {name: known.get(name, {}).get("dataset", name) for name in names}
        self.inputs = {name: _input_spec(self._specs[name]) for name in names}
        self.step: int | None = about.get("step")
        self.pad: dict[str, Any] = _recorded_padding(about)

    def _load(self, about: Mapping[str, Any]) -> tuple[Callable[..., Any], Mapping[str, Any]]:
        """What is called with named inputs, and what each of these is."""
        with without_chatter():
            try:
                self._loaded = tf.saved_model.load(str(self.path))
            except (OSError, ValueError, tf.errors.OpError) as error:
                raise UserError(f"{self.path}: cannot be loaded as a SavedModel: {error}") from None
        if SIGNATURE not in self._loaded.signatures:
            has = ", ".join(self._loaded.signatures) or "none"
            raise UserError(f"{self.path}: has no signature {SIGNATURE}; it has {has}")
        call = self._loaded.signatures[SIGNATURE]
        return call, call.structured_input_signature[1]

    def digest(self) -> str:
        """Of what decides: the graph and the variables, whose index holds a checksum of each."""
        digest = hashlib.sha256()
        for name in self._decisive:
            if (self.path / name).exists():
                digest.update(read_bytes(self.path / name, MAX_GRAPH_BYTES, follow=True))
        return digest.hexdigest()[:16]

    def predict(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See LoadedExport."""
        inputs = {name: tf.constant(array, dtype=self._specs[name].dtype) for name, array in arrays.items()}
        return {name: output.numpy() for name, output in sorted(self._call(**inputs).items())}


class ShardsExport(KerasExport):
    """An exported model whose tables lie in shards beside it; its signature is the one that hpc_train.json records.

    Raises:
        UserError: As load_exported_model; or hpc_train.json has no such signature.
    """

    _decisive = (KERAS_FILE, f"{TABLES}/{INDEX_FILE}")

    def _load(self, about: Mapping[str, Any]) -> tuple[Callable[..., Any], Mapping[str, Any]]:
        model = load_exported_model(self.path)
        try:
            given = about["signature"]["inputs"]
            specs = {name: tf.TensorSpec(one["shape"], one["dtype"], name=name) for name, one in given.items()}
            if sorted(tf.nest.flatten(about["structure"])) != sorted(specs):
                raise ValueError
        except (KeyError, TypeError, AttributeError, ValueError):
            raise UserError(f"{self.path / ABOUT_FILE}: does not say how the model is called; export it anew") from None
        function = default_serving(model, Signature(specs, about["structure"]))
        return lambda **inputs: function(inputs), specs


class TreeExport(LoadedExport):
    """Exported trees (`builtin: gbdt`).

    Args:
        threads: With which they predict.

    Raises:
        UserError: XGBoost is not installed, or the export is damaged.
    """

    def __init__(self, path: Path, threads: int) -> None:
        self.path, self._threads = path, threads
        schema = read_schema(path / "assets" / SCHEMA_FILE, follow=False)
        if schema.task is None:
            raise UserError(
                f"{path / 'assets' / SCHEMA_FILE}: has no label, which trees have learned; export them anew"
            )
        self._schema, self._output = schema, OUTPUTS[schema.task]
        self._columns = TreeColumns(schema)
        try:
            content = read_bytes(path / MODEL_FILE, MAX_GRAPH_BYTES, follow=True)
        except OSError as error:
            raise UserError(f"{path / MODEL_FILE}: cannot be read: {error.strerror}") from None
        about = read_json(path / ABOUT_FILE)
        if about.get("sha256") != hashlib.sha256(content).hexdigest():  # XGBoost would crash on what is damaged
            raise UserError(f"{path / MODEL_FILE}: is not what {ABOUT_FILE} beside it records; copy the export anew")
        if about.get("schema", digest_of(schema)) != digest_of(schema):
            raise UserError(
                f"{path / 'assets' / SCHEMA_FILE}: has other columns, roles or vocabularies than its trees know; "
                "copy the export anew"
            )
        self._digest = hashlib.sha256(content + schema.to_yaml().encode()).hexdigest()[:16]
        self._booster = booster_of(content, threads)
        types = {name: schema.columns[name].type for name in self._columns.columns}
        self.inputs = {name: InputSpec("object" if kind == "text" else "float64", ()) for name, kind in types.items()}
        self.datasets = {name: name for name in types}
        step = about.get("step")
        self.step = step if isinstance(step, int) else None
        self.pad = {}

    def digest(self) -> str:
        """Of the trees and the schema."""
        return self._digest

    def predict(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See LoadedExport."""
        matrix = matrix_of(self._columns, self._columns.matrix(arrays), self._threads)
        return {self._output: predicted(self._booster, matrix, units_of(self._schema))}


def _input_spec(spec: Any) -> InputSpec:
    shape = None if spec.shape.rank is None else tuple(spec.shape.as_list()[1:])
    return InputSpec(np.dtype(spec.dtype.as_numpy_dtype).name, shape)


def _recorded_padding(about: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return are_paddings(about["data"]["pad"])
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}
