"""Where a warm start takes variables from: job-dirs, checkpoints, .keras files, SavedModels, TensorFlow's. Local."""

from __future__ import annotations

import importlib
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpc_train.checkpoint.format import read_parts, read_snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.manifest import MANIFEST_FILE, STATE_FILE, DamagedError, FormatError, check, read_manifest
from hpc_train.checkpoint.names import Retention
from hpc_train.distributed.share import Share
from hpc_train.errors import UserError
from hpc_train.export.export_dir import ABOUT_FILE
from hpc_train.jobdir.paths import CHECKPOINTS, step_of
from hpc_train.lazy import keras, tf
from hpc_train.model.model_state import by_name, by_path
from hpc_train.telemetry.json_files import read_json
from hpc_train.text import NAMED, listed
from hpc_train.warm_start import tensorflow_checkpoint
from hpc_train.warm_start.checkpoint_prefix import NEWEST_FILE, near, prefix_at, prefixes_in

Kind = Literal["job-dir", "checkpoint", ".keras file", "SavedModel", "TensorFlow checkpoint"]

_KINDS = (
    "a job-dir, a checkpoint's folder (…/checkpoints/step-…), a .keras file, a SavedModel's folder, or a checkpoint of "
    "TensorFlow (…/model.ckpt-1000, or the model_dir)"
)
_ATTEMPTS = 5
"""How often to look for a checkpoint of a job that removes it meanwhile, because it has newer ones."""


@dataclass(frozen=True)
class Source:
    """Variables to start from.

    Attributes:
        path: Absolute, links followed; of a checkpoint of TensorFlow the prefix.
        step: After which they were saved, None where that isn't known.
        arrays: By path, in the model's order; the optimizer's are not among them. StoredArrays where there is a folder.
        others: What else a checkpoint of TensorFlow has, which is left aside: its kind by name.
        folder: Of a job's checkpoint whose arrays are still there.
    """

    path: Path
    kind: Kind
    step: int | None
    arrays: dict[str, Any]
    others: Mapping[str, tensorflow_checkpoint.Other] = field(default_factory=dict)
    folder: Path | None = None

    def read(self, wanted: Mapping[str, tuple[str, Share | None]]) -> Iterator[tuple[str, np.ndarray]]:
        """Values, one after the other; of a folder no more than these is read.

        Args:
            wanted: By any name, with which each comes: the variable's path, and which part of it; None: all.

        Raises:
            UserError: The folder is damaged or cannot be read.
        """
        if self.folder is not None:
            with _told(self.path):
                stored = {name: (self.arrays[path].dataset, share) for name, (path, share) in wanted.items()}
                yield from read_parts(self.folder, stored)
            return
        for name, (path, share) in wanted.items():
            yield name, self.arrays[path] if share is None else share.of(self.arrays[path])


def check_path(path: Path, job_dir: Path | None = None) -> Kind:
    """What lies at `path`, found by names and, of a model_dir, its `checkpoint` file; without TensorFlow. Local.

    Raises:
        UserError: Nothing to start from is there, or it is the job's own `job_dir`.
    """
    if job_dir is not None and path.resolve() in (job_dir.resolve(), (job_dir / CHECKPOINTS).resolve()):
        raise UserError(
            f"warm_start_from: {path} is the job-dir itself; a job goes on from its own checkpoints by itself, so "
            "name another, or leave it out"
        )
    try:
        return _kind_of(path)
    except OSError as error:
        raise UserError(f"warm_start_from: {error.filename or path}: cannot be read: {error.strerror}") from None


def _kind_of(path: Path) -> Kind:
    if path.suffix == ".keras" and path.is_file():
        if "model.weights.h5" not in _names_in(path):
            raise UserError(f"warm_start_from: {path}: not a .keras file as Keras 3 writes it (model.save)")
        return ".keras file"
    if not path.is_dir() and prefix_at(path) is not None:
        return "TensorFlow checkpoint"
    if not path.exists():
        raise UserError(f"warm_start_from: {path}: there is no such file or folder{near(path) or f'; give {_KINDS}'}")
    if path.is_file():
        raise UserError(f"warm_start_from: {path}: a file of no known kind; give {_KINDS}")
    if (path / "saved_model.pb").is_file():
        if not (path / "variables" / "variables.index").is_file():
            raise UserError(f"warm_start_from: {path}: a SavedModel without variables")
        return "SavedModel"
    if (path / STATE_FILE).is_file() and (path / MANIFEST_FILE).is_file():
        return "checkpoint"
    folder = path if path.name == CHECKPOINTS else path / CHECKPOINTS
    if folder.is_dir():
        if not _manager(folder).steps():
            raise UserError(f"warm_start_from: {path}: a job-dir without a checkpoint yet")
        return "job-dir"
    if prefix_at(path) is not None:
        return "TensorFlow checkpoint"
    raise UserError(f"warm_start_from: {path}: {_nothing_in(path)}")


def _nothing_in(folder: Path) -> str:
    within = sorted(p.parent for p in folder.glob("*/saved_model.pb") if not p.parent.name.startswith("."))
    if within:
        return f"no checkpoint and no model is here; did you mean {within[-1]}?"
    if names := prefixes_in(folder):
        return f"no file `{NEWEST_FILE}` says which is the newest; give one of those here: {listed(names, most=NAMED)}"
    return f"no checkpoint and no model is here; give {_KINDS}"


def _names_in(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return file.namelist()
    except zipfile.BadZipFile:
        return []


def read_source(path: Path, held: ExitStack | None = None, digests: bool = True) -> Source:
    """Reads the model's variables at `path`, whole. Local; TensorFlow has been set up.

    A job's checkpoint is read under the lock that keeps it from being removed. No code that is stored at `path` runs.

    Args:
        held: Keeps a job's checkpoint from being removed until it is closed: its arrays are left there.
        digests: Compare those of a job's checkpoint.

    Raises:
        UserError: There is nothing to start from, or it is damaged or cannot be read.
    """
    path = path.resolve() if path.is_dir() else path.parent.resolve() / path.name  # files of a prefix may be links
    kind = check_path(path)
    with _told(path):
        if kind == "TensorFlow checkpoint":
            return _of_tensorflow(path)
        path = path.resolve()
        if kind in ("job-dir", "checkpoint"):
            folder, step, arrays = (_of_job_dir if kind == "job-dir" else _of_checkpoint)(path, held, digests)
            return Source(path, kind, step, arrays, folder=None if held is None else folder)
        return Source(path, kind, *_READERS[kind](path))


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A context whose errors of a file are UserErrors."""
    try:
        yield
    except (DamagedError, FormatError) as error:
        raise UserError(f"warm_start_from: {error}") from None
    except OSError as error:
        raise UserError(f"warm_start_from: {error.filename or path}: cannot be read: {error.strerror}") from None


def _manager(folder: Path) -> CheckpointManager:
    return CheckpointManager(folder, Retention(0))


def _of_job_dir(path: Path, held: ExitStack | None, digests: bool) -> tuple[Path, int, dict[str, Any]]:
    """The newest whole checkpoint."""
    folder = path if path.name == CHECKPOINTS else path / CHECKPOINTS
    manager, why = _manager(folder), ""
    for _ in range(_ATTEMPTS):
        vanished = False
        for step in reversed(manager.steps()):
            try:
                return _of_checkpoint(manager.path(step), held, digests)
            except DamagedError as error:
                why = why or f": {error}"
            except FileNotFoundError:
                vanished = True
        if not vanished:
            break
    raise UserError(f"warm_start_from: {path}: no checkpoint there is whole{why}")


def _of_checkpoint(folder: Path, held: ExitStack | None, digests: bool) -> tuple[Path, int, dict[str, Any]]:
    step = step_of(folder.name)
    with ExitStack() as lock:
        if step is not None:
            lock.enter_context(_manager(folder.parent).reading(step))
        step = read_manifest(folder).step if step is None else step
        check(folder, step, digests)
        arrays = read_snapshot(folder, () if held is None else None).model
        if held is not None:
            held.push(lock.pop_all())
        return folder, step, arrays


def _of_keras_file(path: Path) -> tuple[None, dict[str, np.ndarray]]:
    importlib.import_module("hpc_train.parallel")  # its layers, which Keras knows then
    try:
        with tf.device("CPU"):
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except OSError:
        raise
    except Exception as error:  # whatever the file's layers raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"warm_start_from: {path}: Keras cannot load it: {first[:400]}\n"
            "A file with layers of your own needs their classes marked by @keras.saving.register_keras_serializable() "
            "in the model's code, and Lambda layers are refused because they hold code; else start from the job-dir, a "
            "checkpoint or a SavedModel (model.export), which need neither"
        ) from None
    return None, {name: variable.numpy() for name, variable in by_path(model.variables).items()}


def _of_saved_model(path: Path) -> tuple[int | None, dict[str, np.ndarray]]:
    """From its variables' own checkpoint, which has their names: no graph is loaded."""
    try:
        reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
        keys = _model_variables(tensorflow_checkpoint.stored_names(reader))
        arrays = {name: reader.get_tensor(key) for name, key in keys.items() if reader.has_tensor(key)}
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise UserError(f"warm_start_from: {path}: the SavedModel's variables cannot be read: {error}") from None
    step = read_json(path / ABOUT_FILE).get("step")
    return step if isinstance(step, int) else None, arrays


_READERS: dict[Kind, Callable[[Path], tuple[int | None, dict[str, np.ndarray]]]] = {
    ".keras file": _of_keras_file,
    "SavedModel": _of_saved_model,
}


def _of_tensorflow(path: Path) -> Source:
    prefix = prefix_at(path) or path
    content = tensorflow_checkpoint.read(prefix)
    return Source(prefix, "TensorFlow checkpoint", content.step, content.arrays, content.others)


def _model_variables(stored: list[tuple[str, str]]) -> dict[str, str]:
    """Keys by name of what is a variable of the model, given all (key, name) of a SavedModel's checkpoint. Pure.

    Keras 3's export lists all variables of a model as variables/0, variables/1, …, in its order; other writers have
    the tree of layers, where the optimizer's variables are to be left out.
    """
    place = re.compile(r"variables/(\d+)/\.ATTRIBUTES/VARIABLE_VALUE")
    listed = [(int(match[1]), name, key) for key, name in stored if (match := place.fullmatch(key))]
    if listed:
        return by_name([(name, key) for _, name, key in sorted(listed)])
    found: dict[str, str] = {}
    for key, name in stored:
        parts = key.split("/")
        of_model = "optimizer" not in parts or "_trainable_variables" in parts
        if key.endswith("/.ATTRIBUTES/VARIABLE_VALUE") and of_model and "keras_api" not in parts and name:
            found.setdefault(name, key)
    return found
