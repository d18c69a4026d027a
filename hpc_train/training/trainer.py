"""One job, of a program or of a job file, from its specs to its exports, on one rank or many."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from hpc_train.arguments import check_type, checked_arguments
from hpc_train.callbacks.hook_list import check_hooks
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.config.estimator import Estimator
from hpc_train.config.job import JobConfig
from hpc_train.config.job_schema import schema_of, with_schema_named
from hpc_train.config.specs import EvalSpec, TrainSpec, refuse_same_kinds
from hpc_train.config.types import as_sequence
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World
from hpc_train.engine import background_evaluation
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.errors import UserError
from hpc_train.jobdir.code_paths import relative_to
from hpc_train.jobdir.paths import CHECKPOINTS, SCHEMA_FILE
from hpc_train.jobdir.trust import check_job_dir
from hpc_train.model.job_model import JobModel, imported_for
from hpc_train.models.function import BuiltinModelFunction
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import JobStopped, StopSignals
from hpc_train.strategies import strategy_of
from hpc_train.telemetry.logs import set_up_logging
from hpc_train.telemetry.start_timeline import start_timeline
from hpc_train.training.build import build
from hpc_train.training.energy import told_at_the_end
from hpc_train.training.job_description import describe
from hpc_train.training.job_dir import settle_job_dir
from hpc_train.training.nothing_left import finished_result
from hpc_train.training.plan import plan

log = logging.getLogger(__name__)

Result = tuple[dict[str, float], list[Path]]


@checked_arguments
def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec | Sequence[EvalSpec]) -> Result:
    """Trains, evaluates and exports; goes on from the newest checkpoint of the job-dir. Collective.

    Args:
        estimator: The model, and where and how it is trained.
        train_spec: What to train on, and for how long.
        eval_spec: One evaluation set, or several with names of their own; the first one decides which checkpoint is
            the best (`best_metric`).

    Returns:
        The metrics of the last evaluation (of the first set) with `global_step`, the same on all ranks, and the
        folders of the exports made of the last checkpoint.

    Writes, in `estimator.config.model_dir`: job.yaml, environment.json, data.json, status.json, metrics.jsonl,
    checkpoints/, event files in train/, eval/ (eval_<name>/) and ranks/, export/, report.html, logs/failure-*.txt where
    a rank failed, early_stop.json and warm_start.json where those happened.

    Raises:
        UserError: The data, the model or the job-dir cannot be used; nothing has been written.
        RankError: Another rank failed while the job was set up.
        JobEndedError: The numbers went bad, or a checkpoint could not be written; its `code` is the exit code.
        SystemExit: With code 3, 4 or 5, after SIGUSR1, SIGTERM or SIGINT and a checkpoint.
        Whatever the model, the input or a hook raise.

    With several ranks, a failure once training has begun is printed by the rank that failed, and ends all ranks with
    exit code 1. An exception that the program does not catch is printed once, and the exit code is 2 for a UserError.
    """
    if (function := imported_for.get()) is not None:
        raise UserError(
            f"{function}: its file calls train_and_evaluate when it is imported; put that call below "
            'if __name__ == "__main__":, so that its functions can be imported without it'
        )
    where = "train_and_evaluate"
    eval_specs = as_sequence(eval_spec)
    check_type(where, "estimator", estimator, Estimator, "an ht.Estimator")
    check_type(where, "train_spec", train_spec, TrainSpec, "an ht.TrainSpec")
    for spec in eval_specs:
        check_type(where, "eval_spec", spec, EvalSpec, "an ht.EvalSpec, or a list of them")
    if not eval_specs:
        raise UserError(f"{where}: eval_spec: there is none; give an EvalSpec, or several")
    try:
        refuse_same_kinds(eval_specs)
    except ValueError as error:
        raise UserError(f"{where}: eval_spec: {error}") from None
    check_hooks(train_spec, eval_specs)
    with StopSignals() as signals:
        world = join_world(strategy_of(estimator.config.strategy).threads)
        if world.size > 1:
            install_excepthook(world)
        settle_job_dir(world, estimator.config)
        assert estimator.config.model_dir is not None, "settled"
        described = with_schema_named(describe(estimator, train_spec, eval_specs), SCHEMA_FILE)
        description = relative_to(estimator.config.model_dir, described)
        made_by = estimator.model_fn
        schema = schema_of(made_by.settings) if isinstance(made_by, BuiltinModelFunction) else None
        job = TrainingJob(estimator, train_spec, tuple(eval_specs), description, Path.cwd(), schema=schema)
        return run_job(world, job, signals, keras_run)


def train_job(
    world: World, job: JobConfig, job_dir: Path, code_folder: Path, signals: StopSignals, delay_secs: float = 0.0
) -> Result:
    """Runs the job that `job`, a job file's, describes in `job_dir`; see train_and_evaluate. Collective.

    This rank sleeps `delay_secs` after each step.
    """
    return run_job(world, asked_for(job, job_dir, code_folder, delay_secs), signals, keras_run)


def asked_for(job: JobConfig, job_dir: Path, code_folder: Path, delay_secs: float = 0.0) -> TrainingJob:
    """What a job file asks for. Local."""
    model = JobModel.of_job(job, job_dir, code_folder)
    estimator, specs = model.estimator(job.warm_start_from), (job.train_spec(), tuple(job.eval_specs()))
    description = relative_to(job_dir, with_schema_named(job.model_dump(mode="json"), SCHEMA_FILE))
    return TrainingJob(estimator, *specs, description, code_folder, model.load, delay_secs, model.schema)


Run = Callable[
    [World, TrainingJob, RunPlan, CheckpointManager, JobLock, StopSignals], tuple[dict[str, float], list[str]]
]
"""Trains, evaluates and exports as planned; gives the last evaluation's metrics, and the exports of it. Collective."""


def keras_run(
    world: World, job: TrainingJob, run: RunPlan, manager: CheckpointManager, lock: JobLock, signals: StopSignals
) -> tuple[dict[str, float], list[str]]:
    """The Run of a Keras model."""
    with build(world, job, run, strategy_of(job.config.strategy), manager, lock, signals) as context:
        reporter = context.chief.reporter if context.chief else None
        with told_at_the_end(world, job, context.energy, reporter, context.staged):
            return context.training(context)


def run_job(world: World, job: TrainingJob, signals: StopSignals, train: Run) -> Result:
    """What train_and_evaluate does, once the world is joined. Collective."""
    config = job.config
    start_timeline.begin("data")
    world.each(lambda: set_up_logging(world.is_chief, world.rank))
    if world.is_chief:
        for note in world.notes:
            log.warning(note)
    strategy = strategy_of(config.strategy)
    retention = Retention(config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours)
    manager = CheckpointManager(job.job_dir / CHECKPOINTS, retention)
    lock = JobLock(job.job_dir)  # the chief takes it at once where the job-dir is there, else when it is made
    try:
        with ExitStack() as stack:
            stack.callback(lock.release)
            world.each(lambda: _claim(job.job_dir, lock) if world.is_chief and job.job_dir.is_dir() else None)
            run = plan(world, job, strategy, manager)
            if (finished := world.on_chief(lambda: finished_result(job, run))) is not None:
                return finished[0], [Path(path) for path in finished[1]]
            metrics, exports = train(world, job.with_batch(run.batch), run, manager, lock, signals)
            return metrics, [Path(path) for path in exports]
    except JobStopped as stopped:
        if background_evaluation.hangs():  # Python would wait for its thread
            world.leave(stopped.exit_code)
        raise
    finally:
        start_timeline.end()  # of a run without a step


def _claim(job_dir: Path, lock: JobLock) -> None:
    """Takes the lock of a job-dir that is there, and looks who else may write in it. For the chief."""
    if (warning := check_job_dir(job_dir)) is not None:
        log.warning(warning)
    lock.acquire()
