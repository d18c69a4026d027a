"""What goes on beside the training steps, made ready before the first one: evaluations, exporters, hooks, rules."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_train.callbacks.hook_list import Hooks, OfEvaluation, SavingListeners, resolve_hooks, resolve_listeners
from hpc_train.callbacks.keras import Epochs, adapted
from hpc_train.callbacks.profiler import Profiler
from hpc_train.config.specs import EvalSpec, HDF5Input, RunConfig, TrainSpec
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.loading.batch_source import Means
from hpc_train.data.loading.tf_dataset import Loader, OpenInput, context_for
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.evaluation.early_stopping import (
    Decision,
    EarlyStopper,
    check_metrics,
    counting_from,
    read_decision,
    still_holds,
)
from hpc_train.evaluation.evaluator import Evaluator
from hpc_train.export.exporters import Exporting
from hpc_train.export.signature import Signature, signature_of
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.telemetry.progress import Notes
from hpc_train.training.startup import Shards

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Evaluations:
    """All evaluation sets, seen from one rank: how each is evaluated, and on the chief what it exports."""

    evaluators: tuple[Evaluator, ...]
    exporting: tuple[Exporting, ...] | None

    @property
    def metric_names(self) -> dict[str, list[str]]:
        """What each set gives, by its kind."""
        return {evaluator.kind: evaluator.metric_names() for evaluator in self.evaluators}


def prepare_evaluations(
    world: World,
    alone: bool,
    config: RunConfig,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    shards: Shards,
    element_spec: Any,
    model: keras.Model,
    about: dict[str, Any],
    load: Loader,
    means: Means,
) -> Evaluations:
    """Opens and tries out each evaluation set and exporter, and checks the names of metrics. Collective.

    Args:
        alone: The chief evaluates without the others. about: For each export's hpc_train.json.

    Raises:
        UserError: A set does not go with the model, or a metric, an exporter or a rule cannot be what it says.
    """
    together = World.alone() if alone else world
    evaluators = tuple(
        Evaluator(
            model,
            spec,
            found,
            context_for(together.rank, together.size, spec.input_fn, config.tf_random_seed),
            means,
            load,
            together,
        )
        for spec, found in zip(eval_specs, shards[1:], strict=True)
    )
    exporting: tuple[Exporting, ...] | None = None

    def check() -> tuple[Exporting, ...] | None:
        for evaluator in evaluators:
            if world.is_chief or not alone:
                evaluator.check()
        names = {evaluator.kind: evaluator.metric_names() for evaluator in evaluators}
        _check_best_metric(config.best_metric, names[evaluators[0].kind])
        check_metrics(train_spec.early_stopping, names)
        if not world.is_chief:
            return None
        signature, unknown = _signature(model, element_spec, train_spec, shards[0])
        job_dir = config.model_dir.absolute()
        made = tuple(
            Exporting(job_dir, s.exporters, model, signature, about, load, unknown=unknown) for s in eval_specs
        )
        for own, evaluator in zip(made, evaluators, strict=True):
            own.check(names[evaluator.kind])
        return made

    exporting = world.each(check)
    return Evaluations(evaluators, exporting)


def _check_best_metric(name: str | None, metrics: Sequence[str]) -> None:
    """UserError where evaluation will have no metric of that name."""
    if name is not None and name not in metrics:
        near = difflib.get_close_matches(name, metrics, n=1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        raise UserError(f"run.best_metric: {name!r} is no metric of this model; {hint}allowed: {', '.join(metrics)}")


def _signature(
    model: keras.Model, element_spec: Any, train_spec: TrainSpec, shards: ShardSet | None
) -> tuple[Signature | None, str]:
    names = tuple(column.name for column in shards.features) if shards is not None else None
    source = train_spec.input_fn
    if isinstance(source, HDF5Input) and source.map_fn is not None:
        names = names if names and len(names) == 1 else None
    try:
        return signature_of(model, element_spec, names), ""
    except UserError as error:
        return None, str(error)


@dataclass(frozen=True)
class Decided:
    """What is known of ending early when a run begins.

    Attributes:
        held: An earlier run's decision, by which the job has ended; max_steps: where this one ends, therefore.
    """

    held: Decision | None
    max_steps: int | None
    stopper: EarlyStopper | None


def decided_before(job_dir: Path, train_spec: TrainSpec, eval_specs: Sequence[EvalSpec], found: int | None) -> Decided:
    """What earlier runs have decided, and the rules for this one, which goes on from `found`. For the chief."""
    step, rules = found or 0, train_spec.early_stopping
    decision = read_decision(job_dir)
    if found is not None and still_holds(decision, train_spec.max_steps, rules, step):
        return Decided(decision, step, None)
    if not rules:
        return Decided(None, train_spec.max_steps, None)
    stopper = EarlyStopper(
        rules,
        [spec.kind for spec in eval_specs],
        train_spec.max_steps,
        JobDir(job_dir).evaluations(step),
        counting_from(decision, step),
    )
    return Decided(None, train_spec.max_steps, stopper)


def hooks_given(
    world: World,
    roles: Roles,
    config: RunConfig,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    data: OpenInput,
    model: keras.Model,
    metric_names: Sequence[str],
    first_epoch: int,
    load: Loader,
) -> list[Any]:
    """The user's hooks for this rank. Local.

    They are called where steps are made, and in an asynchronous job on the chief, too; those of an EvalSpec where it is
    evaluated.

    Raises:
        UserError: One of them cannot work here.
    """
    asynchronous = config.strategy == "async"
    found: list[Any] = []
    if roles.trains(world.rank) or (asynchronous and world.is_chief):
        found = adapted(
            resolve_hooks(train_spec.hooks, load),
            model,
            epochs=Epochs.of(data.sampler) if data.sampler is not None else None,
            first_epoch=first_epoch,
            eval_name=eval_specs[0].name,
            metric_names=metric_names,
            asynchronous=asynchronous,
        )
    if world.is_chief or not roles.idle:
        for spec in eval_specs:
            found += [OfEvaluation(hook, spec.name) for hook in resolve_hooks(spec.hooks, load, "eval.hooks")]
    return found


def hooks_of(
    world: World,
    roles: Roles,
    config: RunConfig,
    max_steps: int | None,
    first_step: int,
    model: keras.Model,
    hooks: Sequence[Any],
) -> Hooks:
    """This rank's hooks, to be called."""
    first = 0 if roles.servers else roles.idle
    return Hooks(
        hooks,
        model=model,
        rank=world.rank,
        size=world.size,
        is_chief=world.rank == first or world.is_chief,
        job_dir=config.model_dir.absolute(),
        first_step=first_step,
        max_steps=max_steps,
    )


def listeners_for(world: World, train_spec: TrainSpec, load: Loader) -> SavingListeners:
    """The saving listeners, on the chief; none elsewhere. Local."""
    return SavingListeners(resolve_listeners(train_spec.saving_listeners, load) if world.is_chief else [])


def profiler_for(world: World, roles: Roles, config: RunConfig, notes: Notes) -> Profiler:
    """The profiler, which works on the first rank that trains. Local."""
    mine = world.rank == roles.idle and config.profile_steps is not None
    say = notes.say if world.is_chief else lambda text: print(f"hpc-train: {text}", file=sys.stderr)
    return Profiler(config.model_dir.absolute() / "train", config.profile_steps if mine else None, say)
