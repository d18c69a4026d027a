"""What goes on beside the training steps, made ready before the first one: evaluations, exporters, hooks, rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from hpc_train.callbacks.hook import HookContext
from hpc_train.callbacks.hook_list import EvaluationHook, Hooks, resolve_hooks
from hpc_train.callbacks.keras import Epochs, adapted
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.specs import TrainSpec
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.loading.tf_dataset import OpenInput, context_for
from hpc_train.distributed.world import World
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.engine.training_input import TrainingInput
from hpc_train.errors import UserError, did_you_mean
from hpc_train.evaluation.early_stopping import EarlyStopper, check_metrics, counting_from, read_decision
from hpc_train.evaluation.evaluator import Evaluator
from hpc_train.export.contents import about_job
from hpc_train.export.exporters import ExporterRunner
from hpc_train.export.signature import Signature, signature_of
from hpc_train.export.whole_model import WholeModel
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.lazy import keras
from hpc_train.training.data_check import check_same_batches

log = logging.getLogger(__name__)


def prepare_evaluations(
    world: World,
    job: TrainingJob,
    plan: RunPlan,
    data: TrainingInput,
    model: keras.Model,
    build_another: Callable[[], keras.Model],
) -> tuple[tuple[Evaluator, ...], tuple[ExporterRunner, ...], WholeModel | None]:
    """Opens and tries out each evaluation set and exporter, and checks the names of metrics. Collective.

    Returns how each set is evaluated, on the chief what it exports, and the whole model that is exported where ranks
    hold parts of `model`. Where the chief takes no steps, it evaluates
    without the others.

    Raises:
        UserError: A set does not go with the model, or a metric, an exporter or a rule cannot be what it says.
    """
    config, alone = job.config, plan.roles.idle > 0
    together = World.alone() if alone else world
    part = (0, 1) if alone else (plan.roles.part_of(world.rank), plan.roles.readers)
    evaluators = tuple(
        Evaluator(
            model,
            spec,
            found,
            context_for(*part, spec.input_fn, config.tf_random_seed),
            data.resources,
            job.load,
            together,
        )
        for spec, found in zip(job.eval_specs, plan.shards[1:], strict=True)
    )

    exporters = [exporter for spec in job.eval_specs for exporter in spec.exporters]
    needed = WholeModel.is_needed(model, exporters)
    whole = WholeModel(world, model, build_another, exporters) if needed else None

    def try_out() -> None:
        for evaluator in evaluators:
            if world.is_chief or not alone:
                evaluator.check()

    def check() -> tuple[ExporterRunner, ...]:
        check_best_metric(config.best_metric, names[evaluators[0].kind])
        check_metrics(job.train_spec.early_stopping, names)
        if not world.is_chief:
            return ()
        spec = data.current.dataset.element_spec
        exported = model if whole is None or whole.model is None else whole.model
        signature, unknown = _signature(exported, spec, job.train_spec, plan.shards[0])
        about = about_job(
            job.description.get("name"), job.job_dir, job.estimator.params, plan.shards[0], job.train_spec.input_fn
        )
        made = tuple(
            ExporterRunner(
                job.job_dir,
                s.exporters,
                exported,
                signature,
                about,
                job.load,
                unknown=unknown,
                schema=job.schema,
                weights=whole,
            )
            for s in job.eval_specs
        )
        for own, evaluator in zip(made, evaluators, strict=True):
            own.check(names[evaluator.kind])
        return made

    for evaluator, spec in zip(evaluators, job.eval_specs, strict=True):
        check_same_batches(world, plan.roles, evaluator.kind, spec.input_fn, evaluator.opened)
    world.each(try_out)
    for evaluator in evaluators:
        evaluator.agree()
    names = world.on_chief(lambda: {evaluator.kind: evaluator.metric_names() for evaluator in evaluators})
    return evaluators, world.each(check), whole


def check_best_metric(name: str | None, metrics: Sequence[str]) -> None:
    """UserError where evaluation will have no metric of that name; a test_step of one's own may have no loss."""
    if name == "loss" and metrics and name not in metrics:
        log.warning(
            "run.best_metric: the evaluation has no 'loss', so that no checkpoint is kept for its merit; name one of "
            f"{', '.join(metrics)}, or null"
        )
    elif name is not None and name not in ("loss", *metrics):
        hint = did_you_mean(name, metrics)
        raise UserError(f"run.best_metric: {name!r} is no metric of this model; {hint}allowed: {', '.join(metrics)}")


def _signature(
    model: keras.Model, element_spec: Any, train_spec: TrainSpec, shards: ShardSet | None
) -> tuple[Signature | None, str]:
    datasets = shards.feature_inputs if shards is not None else None
    names = tuple(datasets) if datasets is not None else None
    source = train_spec.input_fn
    if isinstance(source, HDF5Input) and source.map_fn is not None:
        names = names if names and len(names) == 1 else None
    try:
        return signature_of(model, element_spec, names, datasets), ""
    except UserError as error:
        return None, str(error)


def early_stopper(job: TrainingJob, plan: RunPlan) -> EarlyStopper | None:
    """The rules for this run; None where there are none, or an earlier run has ended by them. For the chief."""
    rules, step = job.train_spec.early_stopping, plan.first_step
    if plan.decision is not None or not rules:
        return None
    return EarlyStopper(
        rules,
        [spec.kind for spec in job.eval_specs],
        job.train_spec.max_steps,
        JobDir(job.job_dir).evaluations(step),
        counting_from(read_decision(job.job_dir), step),
    )


def user_hooks(
    world: World, job: TrainingJob, plan: RunPlan, data: OpenInput, model: keras.Model, first: Evaluator
) -> list[Any]:
    """The user's hooks for this rank. Collective.

    They are called where steps are made, and in an asynchronous job on the chief, too; those of an EvalSpec where it is
    evaluated. `first`: the first evaluation set's.

    Raises:
        UserError: One of them cannot work here.
    """
    roles, load = plan.roles, job.load
    asynchronous = roles.servers > 0
    names = world.on_chief(first.metric_names)
    evaluated = world.on_chief(lambda: len(JobDir(job.job_dir).evaluations(plan.first_step).get(first.kind, {})))

    def resolve() -> list[Any]:
        found: list[Any] = []
        if roles.trains(world.rank) or (asynchronous and world.is_chief):
            found = adapted(
                resolve_hooks(job.train_spec.hooks, load),
                model,
                epochs=Epochs.of(data.sampler) if data.sampler is not None else None,
                first_epoch=evaluated,
                eval_name=job.eval_specs[0].name,
                metric_names=names,
                asynchronous=asynchronous,
            )
        if world.is_chief or not roles.idle:
            for spec in job.eval_specs:
                found += [EvaluationHook(hook, spec.name) for hook in resolve_hooks(spec.hooks, load, "eval.hooks")]
        return found

    return world.each(resolve)


def hooks_of(world: World, job: TrainingJob, plan: RunPlan, model: keras.Model, hooks: Sequence[Any]) -> Hooks:
    """This rank's hooks, to be called."""
    first = 0 if plan.roles.servers else plan.roles.idle
    is_chief = world.rank == first or world.is_chief
    context = HookContext(model, world.rank, world.size, is_chief, job.job_dir, plan.first_step, plan.max_steps)
    return Hooks(hooks, context)
