"""Evaluates checkpoints of a job-dir from outside, which it only reads. Alone, or on several ranks together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.job import JobConfig
from hpc_train.config.specs import EvalSpec
from hpc_train.config.table_schema import TableSchema
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.batch_source import share_of_node
from hpc_train.data.loading.label_check import check_kept_classes
from hpc_train.data.loading.tf_dataset import context_for
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.evaluation.evaluator import Evaluator
from hpc_train.evaluation.runner import EvaluationRunner
from hpc_train.evaluation.standalone.chief import EvaluationRequest, EvaluatorChief, EvaluatorCommand
from hpc_train.evaluation.standalone.job_watcher import Ask
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.model.job_data import elsewhere, input_names, with_data
from hpc_train.model.job_model import JobModel, job_in_job_dir, kind_of_job
from hpc_train.model.model_state import ModelState
from hpc_train.model.program_job import ProgramJob
from hpc_train.outcome import STOP_CODES
from hpc_train.resilience.signals import JobStopped, StopSignals, signal_of_any
from hpc_train.telemetry.logs import set_up_logging

SLEEP_SECS = 0.2


def evaluate_job(world: World, request: EvaluationRequest, signals: StopSignals, ask: Ask) -> int:
    """Evaluates what `request` asks for; returns the exit code, the same on all ranks. Collective.

    Args:
        signals: Once one has come, this leaves, with its code; what has not been evaluated to its end is dropped.
        ask: See JobWatcher.

    Writes, in `request.out`: metrics.jsonl, with the records of hpc-train train and `checkpoint_time` in each, event
    files in eval/ or eval_<name>/, and lock.json while it runs. Nothing in the job-dir.

    Raises:
        UserError: There is no such job or checkpoint, or its model or data cannot be used.
        RankError: Another rank failed.
        Whatever the model or the input raise.
    """
    world.each(lambda: set_up_logging(world.is_chief, world.rank))
    with ExitStack() as stack:
        chief = EvaluatorChief(request, ask, stack) if world.is_chief else None
        job: LoadedJob | None = None
        while True:
            command = EvaluatorCommand(**world.on_chief(lambda: asdict(chief.command()) if chief else {}))
            if (name := signal_of_any(world, signals.received)) is not None:
                if chief:
                    chief.report(f"stopped by {name}")
                return STOP_CODES[name]
            if command.code is not None:
                return command.code
            if command.step is None:
                _sleep(request.poll_secs, signals)
            elif job is None:
                described = world.on_chief(lambda: _job_for(request))
                job = LoadedJob(world, kind_of_job(described).model_validate(described), request)
                kinds, averages = [e.kind for e in job.runner.evaluators], job.keeps_averages
                world.each(lambda: chief.begin(kinds, averages) if chief else None)  # noqa: B023
            else:
                _evaluate(world, job, command, chief, signals)


def _evaluate(
    world: World, job: LoadedJob, command: EvaluatorCommand, chief: EvaluatorChief | None, signals: StopSignals
) -> None:
    snapshot = world.each(lambda: chief.load(command, job.state) if chief else None)
    if not world.broadcast(snapshot is not None):
        return
    job.state.share(snapshot, 0)
    if command.averaged:
        job.state.updates.finish()

    def moved() -> None:
        if signals.received is not None:
            _leave_now(world, signals.received)
        if chief:
            chief.watch()

    for result in job.runner.evaluate(command.checkpoint.step, command.time, command.numbers, moved):
        world.each(lambda: chief.record(command, result) if chief else None)  # noqa: B023
    if chief:
        chief.evaluated()


def _leave_now(world: World, name: str) -> None:
    """Leaves during an evaluation, whose other ranks must not be left waiting; nothing is lost but its result."""
    print(f"stopped by {name}; this evaluation is dropped", flush=True)
    if world.size > 1:
        world.abort(STOP_CODES[name])
    raise JobStopped(STOP_CODES[name])


def _sleep(secs: float, signals: StopSignals) -> None:
    end = time.monotonic() + secs
    while signals.received is None and (left := end - time.monotonic()) > 0:
        time.sleep(min(SLEEP_SECS, left))


def _job_for(request: EvaluationRequest) -> dict[str, Any]:
    job = job_in_job_dir(JobDir(request.job_dir).job(), request.settings)
    return with_data(job, request.data, request.name).model_dump(mode="json")


class LoadedJob:
    """The model of a job and what evaluates it. Making one is collective.

    Attributes:
        keeps_averages: Whether the optimizer has averages of the weights (use_ema).

    Raises: As evaluate_job.
    """

    def __init__(self, world: World, config: JobConfig | ProgramJob, request: EvaluationRequest) -> None:
        job = JobModel.of_job(config, request.job_dir)
        if isinstance(config, ProgramJob):
            specs = _named(world.each(lambda: config.eval_specs(job.load)), request.name)
        else:
            specs = _named(config.eval_specs(), request.name)
        names = list(input_names(config))
        found = [world.on_chief(lambda spec=spec: _shards_of(spec, names, job.schema)) for spec in specs]  # type: ignore[misc]
        shards = [None if json is None else ShardSet.from_json(json) for json in found]
        set_up_tensorflow(world)
        resources = world.each(lambda: share_of_node(world.cores, world.local_size))
        seed = job.config.tf_random_seed
        contexts = [context_for(world.rank, world.size, spec.input_fn, seed) for spec in specs]
        self.model, _, updates = world.each(
            lambda: job.build(specs[0].input_fn, shards[0], contexts[0], specs[0].steps, resources)
        )
        evaluators = [
            Evaluator(self.model, replace(spec, exporters=()), own, context, resources, job.load, world)
            for spec, own, context in zip(specs, shards, contexts, strict=True)
        ]
        for evaluator in evaluators:
            world.each(evaluator.check)
            evaluator.agree()
        self.runner = EvaluationRunner(world, evaluators, (), None)
        self.keeps_averages = updates.keeps_averages
        self.state = ModelState(self.model, world, updates)
        world.each(self.state.check_ranks)


def _named(specs: list[EvalSpec], name: str | None) -> list[EvalSpec]:
    """The specs to evaluate: all, or the one called `name`; where there is only one, it is called so."""
    if name is None:
        return specs
    known = [spec for spec in specs if spec.name == name]
    if known or len(specs) == 1:
        return known or [replace(specs[0], name=name)]
    there = ", ".join(spec.name or "the one without a name" for spec in specs)
    raise UserError(f"--name: the job has no evaluation set {name!r}; it has: {there}")


def _shards_of(spec: EvalSpec, names: Sequence[str], schema: TableSchema | None) -> dict[str, Any] | None:
    if not isinstance(spec.input_fn, HDF5Input):
        return None
    try:
        found = find_shards(spec.input_fn)
        if schema is not None and spec.input_fn.map_fn is None:
            check_kept_classes(found, schema.classes)
        return found.to_json()
    except UserError as error:
        raise UserError(f"{error}{elsewhere(spec.input_fn, spec.name or names[0], names)}") from None
