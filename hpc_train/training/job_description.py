"""A job in words: for job.yaml, for the first lines that it prints, for what it exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hpc_train.config.builtin_model import BuiltinModel
from hpc_train.config.early_stopping import as_mapping
from hpc_train.config.estimator import Estimator
from hpc_train.config.exporters import exporters_as_mapping
from hpc_train.config.functions import name_of
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.specs import EvalSpec, EvalTimes, TrainSpec
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.models.function import BuiltinModelFunction


def describe(estimator: Estimator, train_spec: TrainSpec, eval_specs: Sequence[EvalSpec]) -> dict[str, Any]:
    """A job of a program as its job.yaml describes it, functions by name. Pure."""
    first, *further = eval_specs
    described: dict[str, Any] = {
        "model": _model(estimator.model_fn),
        "params": dict(estimator.params),
        "data": {"train": _source(train_spec.input_fn), "eval": _source(first.input_fn)},
        "run": asdict(estimator.config),
        "train": {
            "max_steps": train_spec.max_steps,
            "keep_global_batch": train_spec.keep_global_batch,
            "early_stopping": as_mapping(train_spec.early_stopping),
            "hooks": [name_of(hook) for hook in train_spec.hooks],
            "saving_listeners": [name_of(listener) for listener in train_spec.saving_listeners],
        },
        "eval": {"name": first.name, **_evaluation(first)},
    }
    if further:
        described["evals"] = {str(s.name): {"data": _source(s.input_fn), **_evaluation(s)} for s in further}
    if (settings := estimator.warm_start) is not None:
        described["warm_start_from"] = asdict(settings)
    return described


def _model(function: Any) -> Any:
    if isinstance(function, BuiltinModelFunction):
        return TypeAdapter(BuiltinModel).dump_python(function.settings, mode="json")
    return name_of(function)


def _evaluation(spec: EvalSpec) -> dict[str, Any]:
    options = {field.name: getattr(spec, field.name) for field in fields(EvalTimes)}
    exporters = {
        name: {key: name_of(value) if callable(value) else value for key, value in values.items()}
        for name, values in exporters_as_mapping(spec.exporters).items()
    }
    return {**options, "hooks": [name_of(hook) for hook in spec.hooks], "exporters": exporters}


def _source(source: Any) -> Any:
    if not isinstance(source, HDF5Input):
        return f"function {name_of(source)}"
    values = {field.name: getattr(source, field.name) for field in fields(source)}
    files = {name: [str(Path(path).absolute()) for path in values[name]] for name in ("shards", "external")}
    return {**values, **files, "map_fn": source.map_fn and name_of(source.map_fn)}


def first_line(job: TrainingJob, plan: RunPlan) -> str:
    """The first thing to log: from where to where training goes, and with which batches."""
    roles, first_step = plan.roles, plan.first_step
    begin = f"going on from step {first_step}" if first_step else "training from the beginning"
    batch, source = "", job.train_spec.input_fn
    if isinstance(source, HDF5Input) and (not roles.servers or job.config.max_staleness == 0):
        rows, readers = source.batch_size, roles.readers
        copies = f"{'copy' if readers == 1 else 'copies, each'} on {roles.model} ranks"
        of = "workers" if roles.idle else copies if roles.model > 1 else "ranks"
        count = job.config.accumulate_steps
        pieces = f" in {count} pieces" if count > 1 and plan.batch is not None and plan.batch.kept else ""
        batch = f"; global batch {rows * readers} ({rows}{pieces} x {readers} {of})"
    elif isinstance(source, HDF5Input):
        batch = f"; batch {source.batch_size}, a step being one gradient of one of {roles.readers} workers"
    return f"{begin} to step {plan.max_steps or 'end of input'}{batch}; job-dir {job.job_dir}"


def of_the_run_before(status: dict[str, Any]) -> list[str]:
    """What to log where the run before this one ended without a word."""
    if status.get("state") != "running":
        return []
    when = datetime.fromtimestamp(status.get("updated", 0)).astimezone().isoformat(" ", "seconds")
    return [
        f"the run before ended without a word: last heard of at {when}, at step {status.get('step')} "
        f"(host {status.get('host')}, pid {status.get('pid')})"
    ]
