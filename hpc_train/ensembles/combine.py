"""Makes an ensemble's one model, evaluates it against its members, and exports it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.config.ensemble import MEAN, MEMBERS
from hpc_train.config.exporters import FinalExporter
from hpc_train.config.job import JobConfig
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.loading.batch_source import ReadResources, share_of_node
from hpc_train.data.loading.feed import Feed
from hpc_train.data.loading.tf_dataset import context_for, open_evaluation
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.world import World
from hpc_train.ensembles.averaging import average_weights
from hpc_train.ensembles.begin import Ensemble
from hpc_train.ensembles.combination import Combination, Outputs, combined, outputs_of
from hpc_train.ensembles.scores import Scores
from hpc_train.ensembles.task import Task
from hpc_train.errors import UserError
from hpc_train.export.export_dir import ABOUT_FILE, ExportFolder
from hpc_train.export.exporters import ExporterRunner
from hpc_train.export.from_checkpoint import RestoredModel, restored_model
from hpc_train.files import open_to_lock
from hpc_train.jobdir.paths import EXPORTS
from hpc_train.lazy import keras, tf
from hpc_train.telemetry.json_files import UnreadableError, load_json, write_json
from hpc_train.tuning.search.state import Trial

RESULTS_FILE, LOCK_FILE = "ensemble.json", "ensemble.lock"
EXPORTER = "ensemble"


@dataclass(frozen=True)
class Member:
    """One model of an ensemble: the checkpoint of a trial."""

    trial: Annotated[int, Field(ge=0)]
    step: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Results:
    """What ensemble.json records.

    Attributes:
        task: What the models give: "classes", "binary" (probabilities) or "values".
        evaluation: The evaluation set, as its records are called; `rows`: of it.
        export: The folder of the export, below the ensemble's.
        mean: Metrics of the mean, or of the model whose weights are; `each`: of each member.
    """

    task: str
    evaluation: str
    rows: int
    export: str
    members: tuple[Member, ...]
    mean: dict[str, float | None]
    each: tuple[dict[str, float | None], ...]


_RESULTS = TypeAdapter(Results)


def results_in(ensemble: Ensemble) -> Results | None:
    """What was found when the members were combined last; None: they were not, or are others by now."""
    with suppress(OSError, UnreadableError, ValueError):
        found = _RESULTS.validate_python(load_json(ensemble.path / RESULTS_FILE))
        if found.members == _members(ensemble) and (ensemble.path / found.export / ABOUT_FILE).is_file():
            return found
    return None


def results_of(ensemble: Ensemble, report: Callable[[str], None]) -> Results:
    """As results_in; where they are not there, they are made, by one process of all that would. See combine."""
    if (found := results_in(ensemble)) is not None:
        return found
    path = ensemble.path / LOCK_FILE
    try:
        file = open_to_lock(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with suppress(OSError):  # the file system has no locks: several may make them, and one is as good as the other
            fcntl.flock(file, fcntl.LOCK_EX)
        return results_in(ensemble) or combine(ensemble, report)
    finally:
        os.close(file)


def combine(ensemble: Ensemble, report: Callable[[str], None]) -> Results:
    """Exports one model of all members to `export/ensemble/<unix seconds>/`, and writes ensemble.json.

    Local, in this process, on the CPU unless CUDA_VISIBLE_DEVICES says otherwise; it runs the job's code.

    Raises:
        UserError: A member cannot be read, or they cannot be combined. Whatever the job's code raises.
    """
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    world = World.alone()
    set_up_tensorflow(world)
    chosen = _members(ensemble)
    report(f"combining {len(chosen)} members")
    restored = [_restored(ensemble, member) for member in chosen]
    combination, resources = combined(restored), share_of_node(world.cores, 1)
    outputs, model = combination.outputs(), combination.model
    job = ensemble.study.job.job
    if ensemble.section.combine == "weights":
        one = _restored(ensemble, chosen[-1])
        average_weights(restored, one, resources, report)
        outputs, model = _beside(one, combination, outputs), one.model
    scores = _scores(job, restored[0], outputs, combination.task, resources)
    mean, *each = scores.results()
    path = _exported(ensemble, restored, chosen, model, mean)
    found = Results(
        combination.task.kind,
        job.eval_specs()[0].kind,
        scores.rows,
        str(path.relative_to(ensemble.path)),
        chosen,
        dict(mean),
        tuple(map(dict, each)),
    )
    write_json(ensemble.path / RESULTS_FILE, asdict(found))
    return found


def _members(ensemble: Ensemble) -> tuple[Member, ...]:
    """The members, each with the step of its checkpoint.

    Raises:
        UserError: One has no checkpoint.
    """
    return tuple(Member(trial.number, step) for trial in ensemble.trained() for step in _steps(ensemble, trial))


def _steps(ensemble: Ensemble, trial: Trial) -> Sequence[int]:
    """Those of a trial's checkpoints that are members."""
    job_dir, section = ensemble.study.folder.job_dir(trial), ensemble.section
    manager = CheckpointManager(job_dir.checkpoints_path, Retention())
    best, steps = manager.best(), manager.steps()
    if section.combine != "mean":
        job = ensemble.study.job.job
        wanted = section.snapshots(job.train.max_steps or 0, job.run.learning_rate_cycle)
    else:
        wanted = [best.step if best is not None and section.checkpoint == "best" else max(steps, default=0)]
    if not steps:
        raise UserError(f"{job_dir.path}: has no checkpoint any more; for an ensemble without it begin another one")
    if lacking := sorted(set(wanted) - set(steps)):
        which = ", ".join(map(str, lacking))
        raise UserError(f"{job_dir.path}: has no checkpoint of step {which} any more; the ensemble cannot be made")
    return wanted


def _restored(ensemble: Ensemble, member: Member) -> RestoredModel:
    keras.utils.clear_session()
    trial = ensemble.study.state.trials[member.trial]
    return restored_model(ensemble.study.folder.job_dir(trial).path, member.step)


def _beside(one: RestoredModel, combination: Combination, outputs: Outputs) -> Outputs:
    """As `outputs` of the members, with those of `one` in place of their mean."""
    own = outputs_of(one.model, one.signature)

    def call(features: Any) -> dict[str, Any]:
        (given,) = own(features).values()
        return {**outputs(features), MEAN: combination.task.outputs(given)}

    return call


def _scores(job: JobConfig, member: RestoredModel, outputs: Outputs, task: Task, resources: ReadResources) -> Scores:
    """How good the ensemble and its members are on the rows of the first evaluation set."""
    spec = job.eval_specs()[0]
    context = context_for(0, 1, spec.input_fn, job.run.tf_random_seed)
    shards, scores = find_shards(spec.input_fn), Scores(task.kind)
    with (
        open_evaluation(spec.input_fn, shards, context, spec.steps, resources, member.job.load) as opened,
        Feed(opened.dataset, lambda: opened.failure) as batches,
    ):
        for batch in batches:
            features, labels, *weights = batch if isinstance(batch, tuple) else (batch, None)
            labels = tf.nest.flatten(labels)
            if len(labels) != 1 or labels[0] is None:
                raise UserError(f"{spec.kind}: an ensemble is evaluated with one label; its batches have {len(labels)}")
            found = outputs(features)
            weight = weights[0].numpy() if weights else None
            scores.add(labels[0].numpy(), found[MEAN].numpy(), found[MEMBERS].numpy(), weight)
    if not scores.rows:
        raise UserError(f"{spec.kind}: has no rows to evaluate the ensemble with")
    return scores


def _exported(
    ensemble: Ensemble,
    restored: Sequence[RestoredModel],
    chosen: Sequence[Member],
    model: keras.Model,
    metrics: dict[str, float],
) -> Path:
    path = ensemble.path
    about: dict[str, Any] = {
        **restored[0].about,
        "job": ensemble.settings.name,
        "job_dir": str(path),
        "members": [asdict(member) for member in chosen],
    }
    exporter = FinalExporter(EXPORTER)
    job, of_model = restored[0].job, (model, restored[0].signature, about)
    runner = ExporterRunner(path, (exporter,), *of_model, job.load, sole=False, schema=job.schema)
    runner.check(())
    newest = max(member.snapshot.time for member in restored)
    step = max(member.step for member in chosen)
    return runner.write(ExportFolder(path / EXPORTS / EXPORTER, False, path), exporter, step, newest, metrics)


def best_member(found: Results) -> int:
    """The place of the member with the smallest loss. Pure."""
    losses = [metrics["loss"] for metrics in found.each]
    return int(np.argmin([np.inf if loss is None else loss for loss in losses]))
