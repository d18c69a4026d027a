"""What an export holds beside the SavedModel: the Keras file, and what it was made of."""

from __future__ import annotations

import importlib
import json
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.distributed.silence import without_chatter
from hpc_train.export.signature import Signature
from hpc_train.folders import remove
from hpc_train.lazy import keras, tf


def describe(function: Callable[..., Any], signature: Signature | None) -> dict[str, Any]:
    """Inputs and outputs of a traced tf.function with an input_signature: dtypes and shapes by name, and their order.

    The inputs' `dataset` is the one that they were read from, where its name is not the input's.
    """
    traced = function.get_concrete_function()  # type: ignore[attr-defined]
    specs = list(signature.inputs.values()) if signature else tf.nest.flatten(function.input_signature)  # type: ignore[attr-defined]
    inputs = {spec.name: _described(spec) for spec in specs}
    for name, dataset in (signature.datasets if signature else {}).items():
        inputs[name]["dataset"] = dataset
    outputs = traced.structured_outputs
    if not isinstance(outputs, dict):
        outputs = {"output_0": outputs}
    described = {name: _described(spec) for name, spec in outputs.items()}
    return {"signature": {"inputs": inputs, "outputs": described}, "input_order": list(inputs)}


def _described(spec: Any) -> dict[str, Any]:
    shape = spec.shape.as_list() if spec.shape.rank is not None else None
    return {"dtype": spec.dtype.name, "shape": shape}


def save_keras_file(model: keras.Model, path: Path) -> dict[str, str | None]:
    """Writes the model, without its optimizer, as a `.keras` file of Keras's own layers, wherever a config makes them.

    Returns what hpc_train.json records: the file's name as `keras_file`, and as `keras_needs` what is to be imported
    before Keras can load it, where that is something of hpc_train; None and as `keras_error` why there is none.

    Raises:
        OSError: The file cannot be written.
    """
    optimizer, compiled = model.optimizer, model.compiled
    model.optimizer, model.compiled = None, False  # Keras finds nothing meanwhile that `compile` was given
    try:
        with without_chatter(), _as_keras_layers(model) as are_left:
            model.save(path)
    except OSError:
        raise
    except Exception as error:
        remove(path, missing_ok=True)
        return {"keras_file": None, "keras_error": f"{type(error).__name__}: {error}".strip()}
    finally:
        model.optimizer, model.compiled = optimizer, compiled
    return {"keras_file": path.name, **({"keras_needs": "hpc_train.parallel"} if are_left else {})}


def _as_keras_layers(model: keras.Model) -> AbstractContextManager[bool]:
    """See parallel.ordinary, which a job without layers of ht.parallel does not import."""
    if "hpc_train.parallel" not in sys.modules:
        return nullcontext(False)
    from hpc_train.parallel.ordinary import as_keras_layers

    return as_keras_layers(model)


def about_job(
    job: str | None, job_dir: Path, params: Mapping[str, Any], shards: ShardSet | None, source: Any
) -> dict[str, Any]:
    """What each export's hpc_train.json records of the job, and of the datasets that it read.

    Args:
        source: What the job trains on: an HDF5Input, by which `predict` pads rows, or any other.
    """
    data: dict[str, Any] = {"features": None, "labels": None}
    if shards is not None:
        data = {kind: [column.name for column in getattr(shards, kind)] for kind in data}
    if isinstance(source, HDF5Input) and source.pad:
        data["pad"] = source.pad
    plain = json.loads(json.dumps({"params": dict(params), "data": data}, default=str))
    return {"job": job, "job_dir": str(job_dir.absolute()), **plain}


def versions() -> dict[str, str]:
    """Versions of what an export was made with."""
    return {
        "hpc_train": importlib.import_module("hpc_train").__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
    }
