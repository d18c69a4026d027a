"""Exports a job's model from one of its checkpoints, in a process of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.manifest import DamagedError, FormatError
from hpc_train.checkpoint.names import Retention
from hpc_train.config.estimator import Estimator
from hpc_train.config.exporters import FinalExporter
from hpc_train.config.job import JobConfig
from hpc_train.config.specs import HDF5Input, RunConfig
from hpc_train.config.types import NAME_PATTERN
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.tf_dataset import InputContext, open_evaluation
from hpc_train.distributed.optimizer_variables import build as build_optimizer
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.export.contents import about_job
from hpc_train.export.export_dir import ExportFolder
from hpc_train.export.exporters import EXPORTS, Exporting
from hpc_train.export.signature import Signature, signature_of, signature_of_inputs
from hpc_train.model.builder import build_model
from hpc_train.model.functions import load_function
from hpc_train.model.model_state import ModelState
from hpc_train.telemetry.metrics import METRICS_FILE, NOT_METRICS

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Made:
    """An export of the checkpoint of `step`."""

    step: int
    path: Path


@dataclass(frozen=True)
class _Job:
    """What a job-dir tells of the job that was run in it."""

    name: str | None
    model: str
    params: dict[str, Any]
    inputs: tuple[HDF5Input, ...]
    config: RunConfig
    code: Path

    def load(self, name: str) -> Callable[..., Any]:
        """The function that job.yaml names."""
        return load_function(name, self.code)


def export_checkpoint(job_dir: Path, step: int | None = None, name: str = "manual", out: Path | None = None) -> Made:
    """Exports from the checkpoint of `step`, the newest where it is None. Local; the job may be running.

    Writes `job_dir`/export/`name`/<unix seconds>/, or `out`/<unix seconds>/.

    Raises:
        UserError: There is no such checkpoint, or the job's model cannot be built again, or `name` is an exporter of
            the job. Whatever the model function raises.
    """
    job_dir = job_dir.absolute()
    manager = CheckpointManager(job_dir / "checkpoints", Retention())
    step = _chosen(manager, job_dir, step)
    plain = _read_job(job_dir)
    if not re.fullmatch(NAME_PATTERN, name):
        raise UserError(f"--name {name!r} is not allowed; a letter, then letters, digits and underscores")
    if out is None and name in _exporter_names(plain):
        raise UserError(f"--name {name}: the job has an exporter of that name; choose another one")
    job = _job_of(plain, job_dir)
    snapshot = _load(manager, step)
    model, signature, unknown, shards = _built(job)
    _restore(model, snapshot, str(manager.path(step)))
    about = about_job(job.name, job_dir, job.params, shards)
    exporter = FinalExporter(name)
    exporting = Exporting(job_dir, (exporter,), model, signature, about, job.load, sole=False, unknown=unknown)
    exporting.check(())
    folder = ExportFolder(out.absolute() if out is not None else job_dir / EXPORTS / name, sole=False)
    first = plain.get("eval")
    named = first.get("name") if isinstance(first, dict) else None
    metrics = _metrics_of(job_dir / METRICS_FILE, f"eval_{named}" if named else "eval", snapshot.time)
    return Made(step, exporting.write(folder, exporter, step, snapshot.time, metrics))


def _chosen(manager: CheckpointManager, job_dir: Path, step: int | None) -> int:
    steps = manager.steps()
    if not steps:
        raise UserError(f"{job_dir}: has no checkpoints; JOBDIR is where a job keeps everything")
    if step is None:
        return steps[-1]
    if step not in steps:
        raise UserError(f"{job_dir}: has no checkpoint of step {step}; there are those of {', '.join(map(str, steps))}")
    return step


def _load(manager: CheckpointManager, step: int) -> Snapshot:
    try:
        return manager.load(step)
    except (DamagedError, FormatError) as error:
        raise UserError(f"the checkpoint of step {step} cannot be read: {error}") from None
    except FileNotFoundError:
        raise UserError(f"{manager.path(step)}: was removed meanwhile; start again") from None


def _read_job(job_dir: Path) -> dict[str, Any]:
    path = job_dir / "job.yaml"
    try:
        plain = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read, so the model cannot be built: {error}") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("model"), str):
        raise UserError(f"{path}: tells no model; only jobs of a model function can be exported")
    return plain


def _exporter_names(value: Any) -> set[str]:
    """Names of all exporters in a job, as job.yaml has them: by name, or as a list."""
    names: set[str] = set()
    if isinstance(value, dict):
        exporters = value.get("exporters")
        if isinstance(exporters, dict):
            names |= {str(name) for name, options in exporters.items() if options is not None}
        elif isinstance(exporters, list):
            names |= {str(e.get("name")) for e in exporters if isinstance(e, dict)}
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        names |= _exporter_names(item)
    return names


def _job_of(plain: dict[str, Any], job_dir: Path) -> _Job:
    place = plain["model"].rpartition(":")[0]
    code = job_dir / "code"
    if not code.is_dir():
        code = Path(place).parent if place.endswith(".py") else Path.cwd()
    try:
        if "name" in plain:
            job = JobConfig.model_validate(plain)
            both = (job.data.eval, job.data.train)
            return _Job(job.name, job.model, job.params, both, job.run_config(job_dir), code)
        _refuse_unreachable(plain["model"])
        data = plain.get("data") or {}
        described = [data.get(part) for part in ("eval", "train")]
        inputs = tuple(HDF5Input(**source) for source in described if isinstance(source, dict))
        config = RunConfig(**{**(plain.get("run") or {}), "model_dir": job_dir})
    except (ValidationError, TypeError) as error:
        raise UserError(f"{job_dir / 'job.yaml'}: is of another version of hpc_train: {error}") from None
    return _Job(None, plain["model"], plain.get("params") or {}, inputs, config, code)


def _refuse_unreachable(model: str) -> None:
    """UserError where a program's model function cannot be imported by another process."""
    module, _, name = model.rpartition(":")
    if module == "__main__" or "<" in name or "." in name:
        why = "the program that was started" if module == "__main__" else "another function or class"
        raise UserError(
            f"the job's model function is {model}, inside {why}, where this command cannot import it; give the job an "
            "exporter, move the function to the top of a module, or use a job file"
        )


def _built(job: _Job) -> tuple[keras.Model, Signature | None, str, ShardSet | None]:
    """The model, its signature or why there is none, and the shards that told it; None where they are gone."""

    def model_fn(params: dict[str, Any]) -> Any:
        return job.load(job.model)(params)

    model_fn.__qualname__ = job.model
    estimator = Estimator(model_fn, job.config, job.params)
    reasons = []
    for source in job.inputs:
        try:
            shards = find_shards(source)
        except UserError as error:
            reasons.append(str(error))
            continue
        with _spec_of(source, shards, job) as dataset:
            model = build_model(estimator, dataset)
            return model, signature_of(model, dataset.element_spec, [c.name for c in shards.features]), "", shards
    model = model_fn(dict(job.params))
    try:
        return model, signature_of_inputs(model, job.inputs[0].features if job.inputs else None), "", None
    except UserError as error:
        raise UserError("\n".join([*reasons, str(error)])) from None


@contextmanager
def _spec_of(source: HDF5Input, shards: ShardSet, job: _Job) -> Iterator[Any]:
    context = InputContext(0, 1, 0)
    with open_evaluation(source, shards, context, 1, load=job.load) as opened:
        yield opened.dataset


def _restore(model: keras.Model, snapshot: Snapshot, where: str) -> None:
    """Gives the model the checkpoint's variables; averages of them take their place where the optimizer keeps some."""
    build_optimizer(model.optimizer, model.trainable_variables)
    state = ModelState(model, World.alone())
    state.check(snapshot, where)
    state.assign(snapshot)
    model.optimizer.finalize_variable_values(model.trainable_variables)


def _metrics_of(path: Path, kind: str, taken: float) -> dict[str, float]:
    """What the last evaluation of the checkpoint taken at `taken` gave, as metrics.jsonl tells; empty without one."""
    found: dict[str, float] = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        if f'"{kind}"' not in line[:80]:
            continue
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("kind") == kind and record.get("checkpoint_time") == taken:
            found = {k: float(v) for k, v in record.items() if k not in NOT_METRICS and isinstance(v, int | float)}
    return found
