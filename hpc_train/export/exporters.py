"""Exports the model after evaluations, when its exporters want it. For the chief alone."""

from __future__ import annotations

import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpc_train.config.exporters import BestExporter, Exporter
from hpc_train.config.functions import COMPARE_FN, SERVING_FN, checked
from hpc_train.config.table_schema import TableSchema
from hpc_train.distributed.silence import without_chatter
from hpc_train.distributed.tensors import nbytes_of
from hpc_train.errors import UserError, did_you_mean
from hpc_train.export.contents import describe, save_keras_file, versions
from hpc_train.export.export_dir import ABOUT_FILE, Export, ExportFolder
from hpc_train.export.signature import Signature, custom_serving, default_serving, own_resources
from hpc_train.export.table_shards import TableSource, write_tables
from hpc_train.export.whole_model import tables_of
from hpc_train.files import create, open_to_read
from hpc_train.folders import make_folder
from hpc_train.jobdir.paths import EXPORTS, SCHEMA_FILE
from hpc_train.lazy import keras, tf
from hpc_train.telemetry.disk_space import errno_in, shortage
from hpc_train.telemetry.json_files import read_json, write_json

if TYPE_CHECKING:
    from hpc_train.data.loading.tf_dataset import Loader

KERAS_FILE = "model.keras"
BEST_FILE = "best.json"
ENDPOINT = "serve"


@dataclass(frozen=True)
class ExportResult:
    """What an exporter did after an evaluation.

    Attributes:
        path: The export; None where it failed, for the reason `error`.
        new: Whether it was made now: a job that goes on finds the exports of the checkpoint that it evaluates again.
    """

    exporter: str
    path: Path | None
    error: str | None = None
    new: bool = True


class Exporters(ABC):
    """The exporters of one evaluation set, whatever they export. For the chief alone.

    Args:
        load: Finds the functions that a job file names.
        sole: No other process writes into these exporters' folders.
        schema: Of a built-in model of a table: what its inputs and outputs mean; it becomes assets/schema.yaml.
    """

    def __init__(
        self,
        job_dir: Path,
        exporters: Sequence[Exporter],
        load: Loader,
        sole: bool = True,
        schema: TableSchema | None = None,
    ) -> None:
        self._exporters, self._load, self._schema = exporters, load, schema
        self._folders = {e.name: ExportFolder(job_dir / EXPORTS / e.name, sole, job_dir) for e in exporters}

    @abstractmethod
    def prepare(self, exporter: Exporter) -> None:
        """Looks whether `exporter` can work, before training; writes nothing."""

    @abstractmethod
    def least_bytes(self) -> int:
        """What an export takes at least."""

    @abstractmethod
    def fill(self, folder: Path, exporter: Exporter, of_this: dict[str, Any]) -> None:
        """Writes an export into `folder`, which is there, and what it was made of, `of_this` included."""

    def check(self, metric_names: Collection[str]) -> None:
        """Whether all exporters can work. Writes nothing.

        Raises:
            UserError: A metric that evaluation does not give, an asset that is missing or has another's name, a
                serving_fn that returns something else than it must, a folder that cannot be written; all of them
                together. Whatever a serving_fn raises.
        """
        problems = []
        for exporter in self._exporters:
            where = f"exporter {exporter.name!r}"
            problems += [f"{where}: {text}" for text in self._mistakes(exporter, metric_names)]
        if problems:
            raise UserError("\n".join(problems))
        for exporter in self._exporters:
            self.prepare(exporter)
            if isinstance(exporter, BestExporter) and exporter.compare_fn is not None:
                self._loaded(exporter.compare_fn, COMPARE_FN)

    def _mistakes(self, exporter: Exporter, metric_names: Collection[str]) -> list[str]:
        problems = []
        if isinstance(exporter, BestExporter) and exporter.compare_fn is None and exporter.metric not in metric_names:
            hint = f"{did_you_mean(exporter.metric, metric_names)}allowed: {', '.join(metric_names)}"
            problems.append(f"metric {exporter.metric!r} is none of this model; {hint}")
        missing = [str(path) for path in exporter.assets if not path.is_file()]
        if missing:
            problems.append(f"there is no file {', '.join(missing)}, which `assets` names")
        names = [path.name for path in exporter.assets] + ([] if self._schema is None else [SCHEMA_FILE])
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            problems.append(f"`assets` names several files called {', '.join(twice)}; they go into one folder")
        folder = self._folders[exporter.name].path
        blocked = next((path for path in (folder, folder.parent) if path.exists() and not path.is_dir()), None)
        if blocked is not None:
            problems.append(f"cannot write into {folder}, because {blocked} is not a folder")
        return problems

    def _loaded(self, function: str | Callable[..., Any], allowed: tuple[tuple[str, ...], ...]) -> Callable[..., Any]:
        return checked(function, self._load(function), allowed) if isinstance(function, str) else function

    def after_evaluation(
        self, step: int, checkpoint_time: float, metrics: dict[str, float], last: bool
    ) -> list[ExportResult]:
        """Runs the exporters that are due after an evaluation of the checkpoint of `step`; `last`: training has ended.

        What an exporter raises becomes its `error`; of that export nothing is left.
        """
        done = []
        for exporter in self._exporters:
            try:
                exported = self._run(exporter, step, checkpoint_time, metrics, last)
            except Exception as error:
                number = error.errno if isinstance(error, OSError) and error.errno else errno_in(str(error))
                lacks = shortage(number, self._folders[exporter.name].path, self.least_bytes())
                exported = ExportResult(exporter.name, None, f"{type(error).__name__}: {error}{lacks}")
            if exported is not None:
                done.append(exported)
        return done

    def _run(
        self, exporter: Exporter, step: int, checkpoint_time: float, metrics: dict[str, float], last: bool
    ) -> ExportResult | None:
        if not exporter.is_due(step, last):
            return None
        folder = self._folders[exporter.name]
        found = folder.exported_from(checkpoint_time)
        if found is not None:
            return ExportResult(exporter.name, found, new=False)
        if isinstance(exporter, BestExporter) and not self._is_best(exporter, metrics):
            return None
        path = self.write(folder, exporter, step, checkpoint_time, metrics)
        if isinstance(exporter, BestExporter):
            best = {"export": path.name, "step": step, "checkpoint_time": checkpoint_time, "metrics": metrics}
            with suppress(OSError):  # it is found again in the exports
                write_json(folder.path / BEST_FILE, {**_rule(exporter), **best})
        folder.prune(exporter.exports_to_keep)
        return ExportResult(exporter.name, path)

    def write(
        self, folder: ExportFolder, exporter: Exporter, step: int, checkpoint_time: float, metrics: dict[str, float]
    ) -> Path:
        """Exports as `exporter` does, into `folder`, whether it is due or not; raises what fails."""
        of_this = {"step": step, "checkpoint_time": checkpoint_time, "metrics": metrics, "exporter": exporter.name}
        return folder.write(lambda temporary: self.fill(temporary, exporter, of_this))

    def _is_best(self, exporter: BestExporter, metrics: dict[str, float]) -> bool:
        best = self._best(exporter)
        if best is None:
            return exporter.compare_fn is not None or not math.isnan(metrics.get(exporter.metric, math.nan))
        return self._is_better(exporter, best, metrics)

    def _best(self, exporter: BestExporter) -> dict[str, float] | None:
        """The metrics of the best export that is there; None where there is none.

        best.json records it, unless it is of an export that is gone or not the newest (as after a crash between the
        export and best.json), or of another metric: then the exports are compared.
        """
        folder = self._folders[exporter.name]
        exports = folder.exports()
        if not exports:
            return None
        noted = read_json(folder.path / BEST_FILE)
        if noted and noted.get("export") == exports[-1].path.name and noted.items() >= _rule(exporter).items():
            return exports[-1].metrics
        best: Export = exports[0]
        for export in exports[1:]:
            if self._is_better(exporter, best.metrics, export.metrics):
                best = export
        return best.metrics

    def _is_better(self, exporter: BestExporter, best: dict[str, float], current: dict[str, float]) -> bool:
        if exporter.compare_fn is not None:
            return bool(self._loaded(exporter.compare_fn, COMPARE_FN)(dict(best), dict(current)))
        return is_better(current.get(exporter.metric), best.get(exporter.metric), exporter.mode)

    def add_schema(self, folder: Path) -> None:
        """Writes assets/schema.yaml of an export, where there is a schema."""
        if self._schema is not None:
            make_folder(folder / "assets")
            with open(create(folder / "assets" / SCHEMA_FILE), "w", encoding="utf-8") as file:
                file.write(self._schema.to_yaml())


class Weights(Protocol):
    """Where the weights of an exported model are, which does not have them all the time: see WholeModel."""

    @property
    def tables(self) -> Sequence[TableSource]:
        """Those that lie outside of the model, and go into shards beside it."""

    def refresh(self) -> None:
        """Gives the model all others."""


class ExporterRunner(Exporters):
    """Exporters of a Keras model.

    Args:
        signature: How the model is called, for exporters without a serving_fn; None where it is not known, for the
            reason `unknown`.
        about: Goes into each export's hpc_train.json: job, job_dir, params, data.
        load, sole, schema: See Exporters.
        weights: Asked once something is exported; None: the model has them.
    """

    def __init__(
        self,
        job_dir: Path,
        exporters: Sequence[Exporter],
        model: keras.Model,
        signature: Signature | None,
        about: dict[str, Any],
        load: Loader,
        sole: bool = True,
        unknown: str = "",
        schema: TableSchema | None = None,
        weights: Weights | None = None,
    ) -> None:
        super().__init__(job_dir, exporters, load, sole, schema)
        self._model, self._about, self._weights = model, about, weights
        self._signature, self._unknown = signature, unknown
        self._functions: dict[str, Callable[..., Any]] = {}
        self._default: Callable[..., Any] | None = None

    def prepare(self, exporter: Exporter) -> None:
        """Traces the function that is exported."""
        self._function(exporter)

    def _function(self, exporter: Exporter) -> Callable[..., Any]:
        """The tf.function that `exporter` exports; made once."""
        if exporter.name not in self._functions:
            with without_chatter():
                self._functions[exporter.name] = self._make_function(exporter)
        return self._functions[exporter.name]

    def _make_function(self, exporter: Exporter) -> Callable[..., Any]:
        if exporter.serving_fn is not None:
            return custom_serving(
                self._loaded(exporter.serving_fn, SERVING_FN), self._model, f"exporter {exporter.name!r}"
            )
        if self._default is None:
            if self._signature is None:
                raise UserError(f"exporter {exporter.name!r}: {self._unknown}; give it a serving_fn")
            self._default = default_serving(self._model, self._signature)
            self._default.get_concrete_function()  # type: ignore[attr-defined]
        return self._default

    def least_bytes(self) -> int:
        """What an export takes at least: its variables once in the SavedModel, and once in the Keras file; shards."""
        tables = sum(table.nbytes for table in self._weights.tables) if self._weights else 0
        return sum(2 * nbytes_of(variable) for variable in self._model.variables) + tables

    def fill(self, folder: Path, exporter: Exporter, of_this: dict[str, Any]) -> None:
        function = self._function(exporter)
        tables: Sequence[TableSource] = ()
        if self._weights is not None:
            self._weights.refresh()
            tables = self._weights.tables
        if not tables:
            self._save(folder, function)
        for asset in exporter.assets:
            target = folder / "assets" / asset.name
            if target.exists():
                raise ValueError(f"{asset}: the SavedModel has an asset called {asset.name} of its own")
            make_folder(target.parent)
            with open_to_read(asset, follow=True) as source, open(create(target), "wb") as copy:
                shutil.copyfileobj(source, copy)
        self.add_schema(folder)
        about: dict[str, Any] = {**of_this, "time": time.time(), **self._about, "versions": versions()}
        about |= describe(function, self._signature if exporter.serving_fn is None else None)
        about |= save_keras_file(self._model, folder / KERAS_FILE)
        if tables_of(self._model):
            about["tables"] = "shards" if tables else "whole"
        if tables:
            if "keras_error" in about:
                lacks = f"and shards have no SavedModel beside: {about['keras_error']}"
                raise ValueError(f"Keras cannot write the model, {lacks}")
            assert self._signature is not None, "the function was made by it"
            about["structure"] = self._signature.structure
            write_tables(folder, tables)
        write_json(folder / ABOUT_FILE, about, to_disk=False)

    def _save(self, folder: Path, function: Callable[..., Any]) -> None:
        """Writes the SavedModel."""
        with without_chatter():
            archive = keras.export.ExportArchive()
            archive.track(self._model)
            for resource in own_resources(function):
                if resource is not self._model:
                    archive.track(resource)
            archive.add_endpoint(ENDPOINT, function)
            try:
                archive.write_out(str(folder), verbose=False)
            except tf.errors.OpError as error:
                where = error.message.replace(f"{folder}/", "")
                raise OSError(f"the SavedModel cannot be written: {where}") from error


def is_better(value: float | None, best: float | None, mode: str) -> bool:
    """Whether `value` is strictly better than `best`. None means no number; NaN is never better."""
    if value is None or math.isnan(value):
        return False
    if best is None or math.isnan(best):
        return True
    return value < best if mode == "min" else value > best


def _rule(exporter: BestExporter) -> dict[str, Any]:
    """By what `exporter` compares, as best.json records it."""
    compare = exporter.compare_fn
    if compare is not None:
        return {"compare_fn": compare if isinstance(compare, str) else getattr(compare, "__qualname__", repr(compare))}
    return {"metric": exporter.metric, "mode": exporter.mode}
