"""The chief begins to tell of a run: status.json, metrics, event files, and the first lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_train.callbacks.tensorboard import show_job
from hpc_train.config.estimator import Estimator
from hpc_train.config.specs import EvalSpec, RunConfig, TrainSpec
from hpc_train.data.loading.tf_dataset import OpenInput
from hpc_train.distributed.roles import Roles
from hpc_train.jobdir.paths import WARM_START_FILE
from hpc_train.resilience.failure import FailureReport
from hpc_train.telemetry.environment import rank_table
from hpc_train.telemetry.json_files import Lenient, write_json
from hpc_train.telemetry.metrics import MetricsWriter
from hpc_train.telemetry.progress import Notes, TrainingProgress, make_console
from hpc_train.telemetry.reporter import Reporting
from hpc_train.telemetry.status import StatusFile, job_fields, read_status
from hpc_train.training.job_description import first_line, of_the_run_before
from hpc_train.warm_start.apply import WarmStarted

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Started:
    """What there is to tell of a run that begins; warm: what a warm start has done, if there was one."""

    job_dir: Path
    config: RunConfig
    estimator: Estimator
    train_spec: TrainSpec
    eval_specs: Sequence[EvalSpec]
    roles: Roles
    first_step: int
    max_steps: int | None
    model: keras.Model
    data: OpenInput
    warm: Sequence[WarmStarted]


@contextmanager
def start_reporting(
    run: Started,
    failure: FailureReport,
    notes: Notes,
    ranks: list[dict[str, Any]],
    told: Sequence[str],
    reordered: bool,
) -> Iterator[Reporting]:
    """Tells that a run begins, and gives what tells of the rest. Writes into the job-dir.

    Args:
        ranks: About each rank. told: what beginning the job-dir has to tell. reordered: the order of rows is new.
    """
    console = make_console()
    console.print(rank_table(ranks))
    job_dir, config, size = run.job_dir, run.config, run.roles.size
    before, lenient, fields = read_status(job_dir), Lenient(notes.say), job_fields(os.environ)
    status = StatusFile(
        job_dir,
        failure.path,
        lenient,
        step=run.first_step,
        max_steps=run.train_spec.max_steps,
        ranks=size,
        **fields,
    )
    with MetricsWriter(job_dir, lenient) as metrics:
        metrics.start(run.first_step, ranks=size, max_steps=run.max_steps, restarts=fields["restarts"])
        spec = run.data.dataset.element_spec
        x_spec = spec[0] if isinstance(spec, tuple) else spec
        show_job(
            metrics, job_dir, config, run.estimator.params, run.train_spec, run.eval_specs, size, run.model, x_spec
        )
        progress = TrainingProgress(console, run.first_step, run.max_steps, config.log_step_count_steps)
        notes.print_with(progress.say)
        status.update(state="running")
        progress.say(first_line(job_dir, run.train_spec, run.roles, config, run.first_step, run.max_steps))
        progress.say(f"curves: tensorboard --logdir {shlex.quote(str(job_dir))} --host localhost")
        for line in [*told, *of_the_run_before(before), *(line for done in run.warm for line in done.lines)]:
            progress.say(line)
        for done in run.warm:
            with lenient.writing(job_dir / WARM_START_FILE):
                write_json(job_dir / WARM_START_FILE, done.record)
        if reordered:
            progress.say("the order of rows has changed: training goes on with a whole epoch of it")
        for note in run.data.notes:
            progress.say(f"warning: {note}")
        yield Reporting(metrics, status, progress, run.data.advice)
