"""train_and_evaluate: one job from its specs to its exports, on one rank or many."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.cluster.uncaught import tell_uncaught
from hpc_train.cluster.world import World, join_world, set_up_tensorflow
from hpc_train.config.specs import EvalSpec, HDF5Input, TrainSpec
from hpc_train.data.pipeline import Loader, OpenInput, open_training, refuse_name
from hpc_train.errors import EXIT_FAILED, EXIT_STOPPED, RankError, UserError
from hpc_train.estimator.estimator import Estimator
from hpc_train.estimator.evaluation import Evaluator
from hpc_train.estimator.exporters import export_saved_model, exported_from
from hpc_train.estimator.feed import Feed
from hpc_train.estimator.loop import Outcome, Reporting, train
from hpc_train.estimator.model import ModelState, build_model
from hpc_train.estimator.setup import (
    LOGS,
    about_rank,
    begin_job_dir,
    check_labels,
    context_for,
    find_all_shards,
    means_for,
    newest_step,
    unreadable,
    where_from,
)
from hpc_train.estimator.train_step import make_train_step
from hpc_train.monitoring.environment import rank_table
from hpc_train.monitoring.metrics import MetricsWriter
from hpc_train.monitoring.progress import TrainingProgress, make_console
from hpc_train.monitoring.status import StatusFile, mark_failed
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.signals import StopSignals
from hpc_train.strategies.base import Alone, Strategy
from hpc_train.strategies.sync import HorovodSync

if TYPE_CHECKING:
    import keras

OTHERS_TELL_SECS = 10

Result = tuple[dict[str, float], list[Path]]


def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Result:
    """Trains, evaluates and exports; goes on from the newest checkpoint of the job-dir. Collective.

    Returns:
        The metrics of the last evaluation with `global_step`, the same on all ranks, and the exports' folders.

    Writes, in `estimator.config.model_dir`: job.yaml, environment.json, data.json, status.json, metrics.jsonl,
    checkpoints/, event files in train/ and eval/, export/, and logs/failure-*.txt where a rank failed.

    Raises:
        UserError: The data, the model or the job-dir cannot be used; nothing has been written.
        RankError: Another rank failed while the job was set up.
        SystemExit: With code 3, after a signal (SIGUSR1, SIGTERM, SIGINT) and a checkpoint.
        Whatever the model or the input raise.

    With several ranks, a failure once training has begun is printed by the rank that failed, and ends all ranks with
    exit code 1. An exception that the program does not catch is told once, and the exit code is 2 for a UserError.
    """
    description = {
        "model": f"{estimator.model_fn.__module__}:{getattr(estimator.model_fn, '__qualname__', 'model_fn')}",
        "params": dict(estimator.params),
        "data": {"train": _describe(train_spec.input_fn), "eval": _describe(eval_spec.input_fn)},
        "run": asdict(estimator.config),
        "train": {"max_steps": train_spec.max_steps},
        "eval": {name: value for name, value in asdict(eval_spec).items() if name != "input_fn"},
    }
    with StopSignals() as signals:
        world = join_world()
        if world.size > 1:
            tell_uncaught(world)
        return run_job(world, estimator, train_spec, eval_spec, description, Path.cwd(), signals)


def _describe(source: Any) -> Any:
    if not isinstance(source, HDF5Input):
        return f"function {_name_of(source)}"
    values = {field.name: getattr(source, field.name) for field in fields(source)}
    return {**values, "map_fn": source.map_fn and _name_of(source.map_fn)}


def _name_of(function: Any) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}:{kind.__qualname__}"


def run_job(
    world: World,
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec,
    description: dict[str, Any],
    code_folder: Path,
    signals: StopSignals,
    load: Loader = refuse_name,
) -> Result:
    """What train_and_evaluate does, given the job's `description` (for job.yaml) and its code's folder. Collective.

    `load` finds the functions that a job file names.
    """
    config, job_dir = estimator.config, estimator.config.model_dir.absolute()
    manager = CheckpointManager(job_dir / "checkpoints", config.keep_checkpoint_max)
    first_step = world.on_chief(lambda: newest_step(job_dir, manager))
    shards = train_shards, eval_shards = find_all_shards(world, train_spec, eval_spec, job_dir, first_step)
    device = set_up_tensorflow(world)
    place, reordered = where_from(world, manager, first_step, train_spec.input_fn, train_shards)
    context, means = context_for(world, train_spec.input_fn, config.tf_random_seed), means_for(world)
    with ExitStack() as stack:
        opening = open_training(train_spec.input_fn, train_shards, context, place, means, load)
        data = world.each(lambda: stack.enter_context(opening))
        model = world.each(lambda: build_model(estimator, data.dataset))
        eval_context = context_for(world, eval_spec.input_fn, config.tf_random_seed)
        evaluator = Evaluator(model, eval_spec, eval_shards, eval_context, means, load, world)
        world.each(evaluator.check)
        check_labels(world, shards, (train_spec, eval_spec), model)
        state = ModelState(model, world)
        world.each(state.check_ranks)
        snapshot = world.each(lambda: _load(manager, first_step, state) if world.is_chief else None)
        state.share(snapshot)
        strategy: Strategy = world.each(lambda: HorovodSync(world) if world.size > 1 else Alone())

        ranks = world.all_gather(about_rank(world, device, train_spec.input_fn, train_shards, context, data))
        world.on_chief(lambda: begin_job_dir(job_dir, manager, description, ranks, code_folder, shards))
        failure = FailureReport(job_dir / LOGS, world.broadcast(uuid.uuid4().hex[:12]))
        stack.enter_context(_ends_all_ranks(world, job_dir, failure))
        reporting = None
        if world.is_chief:
            console = make_console()
            console.print(rank_table(ranks))
            status = StatusFile(
                job_dir, failure.path, step=first_step, max_steps=train_spec.max_steps, ranks=world.size
            )
            metrics = stack.enter_context(MetricsWriter(job_dir))
            metrics.start(first_step, ranks=world.size)
            progress = TrainingProgress(console, first_step, train_spec.max_steps, config.log_step_count_steps)
            reporting = Reporting(metrics, status, progress, lambda: float(model.optimizer.learning_rate), data.advice)
            reporting.status.update(state="running")
            reporting.progress.say(_first_line(job_dir, train_spec, world, first_step))
            if reordered:
                reporting.progress.say("the order of rows has changed: training goes on with a whole epoch of it")
            for note in data.notes:
                reporting.progress.say(f"warning: {note}")

        run = _Run(world, job_dir, model, state, manager, data, evaluator, eval_spec, reporting, snapshot)
        batches = stack.enter_context(Feed(data.dataset, lambda: data.failure))
        outcome = train(
            world,
            config,
            batches,
            make_train_step(model, strategy),
            first_step,
            train_spec.max_steps,
            run.at_checkpoint,
            signals,
            reporting,
        )
        return run.finish(outcome)


class _Run:
    """What happens beside the training steps. All methods are collective."""

    def __init__(
        self,
        world: World,
        job_dir: Path,
        model: keras.Model,
        state: ModelState,
        manager: CheckpointManager,
        data: OpenInput,
        evaluator: Evaluator,
        eval_spec: EvalSpec,
        reporting: Reporting | None,
        restored: Snapshot | None,
    ) -> None:
        self._world, self._job_dir, self._model, self._state = world, job_dir, model, state
        self._manager, self._data, self._evaluator, self._spec = manager, data, evaluator, eval_spec
        self._reporting = reporting
        self._checkpoint_time = restored.time if restored else 0.0
        self._not_before = time.monotonic() + eval_spec.start_delay_secs

    def at_checkpoint(self, step: int, last: bool) -> None:
        """Saves, then evaluates if it is time to; after the last step that is left to `finish`."""
        self._save(step)
        now = time.monotonic()
        if not last and self._world.broadcast(now >= self._not_before):
            self._not_before = now + self._spec.throttle_secs
            self._evaluate(step)

    def finish(self, outcome: Outcome) -> Result:
        """The last evaluation, and the exports that an earlier run of the job has not made from this checkpoint."""
        world, step = self._world, outcome.step
        if outcome.end == "signal":
            self._say(f"stopped by a signal after step {step}, which is saved; start the job again to go on")
            self._status(state="stopped", step=step)
            raise SystemExit(EXIT_STOPPED)
        if world.on_chief(lambda: self._manager.latest_step() != step):
            self._save(step)
        # With use_ema, the averages take the weights' place now that a checkpoint holds the weights.
        self._model.optimizer.finalize_variable_values(self._model.trainable_variables)
        metrics = self._evaluate(step)
        folders = [self._job_dir / "export" / exporter.name for exporter in self._spec.exporters]
        exports = [Path(p) for p in world.on_chief(lambda: [str(self._export(f, step, metrics)) for f in folders])]
        self._status(
            state="succeeded", step=step, evaluation={"step": step, **metrics}, exports=[str(path) for path in exports]
        )
        waited = f", {outcome.input_wait:.1%} of the time waiting for input" if outcome.input_wait is not None else ""
        self._say(f"done: step {step} ({outcome.end}), {outcome.examples_per_sec:,.0f} examples/s{waited}")
        return {**metrics, "global_step": step}, exports

    def _save(self, step: int) -> None:
        self._state.average()
        self._world.on_chief(lambda: self._write_checkpoint(step))

    def _write_checkpoint(self, step: int) -> None:
        snapshot = self._state.snapshot(self._data.progress_at(step), self._data.order)
        self._say(f"checkpoint {self._manager.save(snapshot)}")
        self._checkpoint_time = snapshot.time

    def _evaluate(self, step: int) -> dict[str, float]:
        metrics = self._evaluator.evaluate()
        if self._reporting:
            self._reporting.metrics.record(self._evaluator.kind, step, metrics)
            self._status(state="running", evaluation={"step": step, **metrics})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self._say(f"{self._evaluator.kind} at step {step}: {shown}")
        return metrics

    def _export(self, folder: Path, step: int, metrics: dict[str, float]) -> Path:
        taken = self._checkpoint_time
        path = exported_from(folder, taken) or export_saved_model(self._model, folder, step, taken, metrics)
        self._say(f"export {path}")
        return path

    def _say(self, text: str) -> None:
        if self._reporting:
            self._reporting.progress.say(text)

    def _status(self, **fields: Any) -> None:
        if self._reporting:
            self._reporting.status.update(**fields)


def _load(manager: CheckpointManager, step: int, state: ModelState) -> Snapshot | None:
    if step == 0:
        return None
    try:
        snapshot = manager.load(step)
    except OSError as error:
        raise UserError(unreadable(manager, step, error)) from None
    state.check(snapshot, str(manager.path(step)))
    return snapshot


def _first_line(job_dir: Path, spec: TrainSpec, world: World, first_step: int) -> str:
    begin = f"going on from step {first_step}" if first_step else "training from the beginning"
    batch = ""
    if isinstance(spec.input_fn, HDF5Input):
        rows = spec.input_fn.batch_size
        batch = f"; global batch {rows * world.size} ({rows} x {world.size} ranks)"
    return f"{begin} to step {spec.max_steps or 'end of input'}{batch}; job-dir {job_dir}"


@contextmanager
def _ends_all_ranks(world: World, job_dir: Path, failure: FailureReport) -> Iterator[None]:
    """An exception of one rank ends the job: one report, the status set to failed, and no rank left waiting."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code == EXIT_STOPPED:
            raise
        try:
            if isinstance(error, RankError):
                time.sleep(OTHERS_TELL_SECS)  # the rank that failed tells it, and ends this one
            elif (report := failure.claim(world.rank, error)) is not None:
                if world.size > 1:
                    sys.stderr.write(report)
                    sys.stderr.flush()
                mark_failed(job_dir, world.rank, error)
        finally:
            if world.size > 1:
                world.abort(EXIT_FAILED)
        raise
