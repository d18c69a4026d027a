"""The chief begins to report on a run: status.json, metrics, event files, and the first lines."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hpc_train import stdio
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.secrets import masked_words
from hpc_train.data.loading.tf_dataset import OpenInput
from hpc_train.engine.rank_energy import RankEnergy, account_of
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.files import read_bytes
from hpc_train.jobdir.folder_identity import FolderIdentity
from hpc_train.jobdir.job_dir import MAX_JOB_BYTES
from hpc_train.jobdir.paths import ENVIRONMENT_FILE, JOB_FILE, SLOW_NODES_FILE, WARM_START_FILE
from hpc_train.jobdir.slow_nodes import add_slow_node, next_start_without
from hpc_train.lazy import keras, tf
from hpc_train.processes import identity
from hpc_train.resilience.failure import FailureReport
from hpc_train.telemetry.environment import binding_lines, rank_table
from hpc_train.telemetry.json_files import Lenient, write_json
from hpc_train.telemetry.logs import console
from hpc_train.telemetry.metrics import MetricsWriter
from hpc_train.telemetry.progress import TrainingProgress
from hpc_train.telemetry.reporter import NodeReports, Reporter, StatusLists
from hpc_train.telemetry.slow_rank_log import SlowRankLog, node_of
from hpc_train.telemetry.start_timeline import start_timeline
from hpc_train.telemetry.status import (
    COMMAND_VARIABLE,
    OUTPUT_VARIABLE,
    SUPERVISOR_VARIABLE,
    StatusFile,
    job_fields,
    read_status,
    sound,
    sound_energy,
)
from hpc_train.text import visible
from hpc_train.training.data_check import notes_on_types
from hpc_train.training.job_description import first_line, of_the_run_before
from hpc_train.warm_start.apply import WarmStartResult

log = logging.getLogger(__name__)

RANKS_LISTED = 64
"""Ranks in the table that a job prints first; environment.json has all."""


@dataclass(frozen=True)
class Announcement:
    """What there is to say of the model and the data as a run begins.

    Attributes:
        first_line: From where to where training goes.
        hyperparameters: By name, for TensorBoard. notes: warnings. warm: what a warm start has done.
        input_advice: What to change where training waits for input.
        graph: Writes the model's graph, once training has begun.
        global_batch: Rows of a step, where all ranks make one together.
    """

    first_line: str
    hyperparameters: Mapping[str, Any]
    notes: Sequence[str] = ()
    warm: Sequence[WarmStartResult] = ()
    input_advice: str = ""
    graph: Callable[[MetricsWriter], None] | None = None
    global_batch: int | None = None

    @classmethod
    def of_model(
        cls, job: TrainingJob, plan: RunPlan, model: keras.Model, optimizer: Any, data: OpenInput, warm: Any
    ) -> Announcement:
        """Of a Keras model; `optimizer` is the first that a step applies."""
        source, config, spec = job.train_spec.input_fn, job.config, data.dataset.element_spec
        about = {
            "strategy": config.strategy,
            "ranks": plan.roles.size,
            "batch_size": source.batch_size if isinstance(source, HDF5Input) else None,
            "optimizer": type(optimizer).__name__,
            "mixed_precision": config.mixed_precision,
            **job.estimator.params,
        }
        notes = [*data.notes, *notes_on_types(plan.shards, (job.train_spec, *job.eval_specs))]
        batch = plan.batch
        if batch is not None and (changed := batch.warning(plan.first_step)) is not None:
            notes.append(changed)
        show = partial(_show_graph, model=model, x_spec=spec[0] if isinstance(spec, tuple) else spec)
        total = None if batch is None else batch.total
        return cls(first_line(job, plan), about, notes, warm, data.advice, show, total)


@contextmanager
def start_reporting(
    job: TrainingJob,
    plan: RunPlan,
    failure: FailureReport,
    ranks: list[dict[str, Any]],
    about: Announcement,
    energy: RankEnergy,
) -> Iterator[Reporter]:
    """Reports that a run begins, and gives what reports the rest. Writes into the job-dir.

    Args:
        ranks: About each rank. energy: the chief's.
    """
    if log.isEnabledFor(logging.INFO):
        screen = console()
        screen.print(rank_table(ranks[:RANKS_LISTED], screen.width))
        if (more := len(ranks) - RANKS_LISTED) > 0:
            screen.print(f"and {more:,} ranks more, see {job.job_dir / ENVIRONMENT_FILE}")
        for line in binding_lines(ranks):
            log.info(visible(line))
    job_dir, config, size = job.job_dir, job.config, plan.roles.size
    before, lenient, fields = read_status(job_dir), Lenient(), job_fields(os.environ)
    fields |= _how_started(size)
    fields["folder"] = asdict(FolderIdentity.of(job_dir))
    max_steps = job.train_spec.max_steps
    lists = StatusLists.of(before, plan.first_step)
    status = StatusFile(job_dir, failure.path, lenient, step=plan.first_step, max_steps=max_steps, ranks=size, **fields)
    with MetricsWriter(job_dir, lenient) as metrics:
        why = _why(fields) | ({} if about.global_batch is None else {"global_batch": about.global_batch})
        metrics.start(plan.first_step, ranks=size, max_steps=plan.max_steps, restarts=fields["restarts"], **why)
        metrics.hyperparameters(about.hyperparameters, [spec.kind for spec in job.eval_specs])
        metrics.text("job", f"```yaml\n{read_bytes(job.job_dir / JOB_FILE, MAX_JOB_BYTES).decode()}\n```")
        progress = TrainingProgress(console(), plan.first_step, plan.max_steps, config.log_step_count_steps)
        earlier = sound_energy(before.get("energy")) or ({"not_measured": ""} if "started" in before else None)
        account = account_of(energy, ranks, earlier)
        status.update(state="running", energy=account.field(0))
        log.info(about.first_line)
        log.info(f"curves: tensorboard --logdir {shlex.quote(str(job_dir))} --host localhost")
        for line in [*of_the_run_before(sound(before)), *(line for done in about.warm for line in done.lines)]:
            log.info(line)
        for done in about.warm:
            if done.warning is not None:
                log.warning(done.warning)
            with lenient.writing(job_dir / WARM_START_FILE):
                write_json(job_dir / WARM_START_FILE, done.record)
        if plan.reordered:
            log.info("the order of rows has changed: training goes on with a whole epoch of it")
        for note in about.notes:
            log.warning(note)
        show = None if about.graph is None else partial(about.graph, metrics)
        nodes = NodeReports(account, _slow_ranks(job, plan, metrics, status, ranks, lenient))
        try:
            yield Reporter(metrics, status, progress, lists, about.input_advice, nodes, show, start_timeline)
        finally:
            nodes.slow_ranks.sum_up()


def _slow_ranks(
    job: TrainingJob,
    plan: RunPlan,
    metrics: MetricsWriter,
    status: StatusFile,
    ranks: Sequence[Mapping[str, Any]],
    lenient: Lenient,
) -> SlowRankLog:
    """What names slow ranks. Of a GPU in a synchronous job, and where layers wait for other ranks, nothing is known."""
    config, job_dir = job.config, job.job_dir
    alone = "hpc_train.parallel" not in sys.modules
    judged = [alone and (config.strategy == "async" or str(about["device"]).startswith("CPU")) for about in ranks]
    several = len({node_of(about) for about in ranks}) > 1

    def exclude(host: str, about: Mapping[str, Any]) -> None:
        if not several:
            log.warning(f"run.on_slow_node: {host} is the job's only node, so the next start cannot do without it")
            return
        with lenient.writing(job_dir / SLOW_NODES_FILE):
            add_slow_node(job_dir, host, about)
        log.warning(f"run.on_slow_node: {next_start_without(host, job_dir, os.environ)}")

    wanted = exclude if config.on_slow_node == "exclude" else None
    return SlowRankLog(metrics, status, config.slow_rank_factor, ranks, judged, wanted)


def _why(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"reason": fields["restart_reason"]} if "restart_reason" in fields else {}


def _how_started(ranks: int) -> dict[str, Any]:
    """The fields `output`, `command`, `supervisor` and `cwd` of the status, as far as they are known."""
    output, command = os.environ.get(OUTPUT_VARIABLE), os.environ.get(COMMAND_VARIABLE)
    if ranks == 1:  # else standard output is mpirun's pipe, and mpirun's own words are not known
        output = output or stdio.output_file()
        own = "hpc_train" in sys.orig_argv[:4] or Path(sys.argv[0]).name == "hpc-train"
        command = command or (shlex.join(sys.orig_argv) if own else None)  # a program's words may be secret
    known = {"output": output, "command": command and _masked(command)}
    found: dict[str, Any] = {name: value for name, value in known.items() if value}
    if (supervisor := os.environ.get(SUPERVISOR_VARIABLE, "")).isdecimal():
        found["supervisor"] = identity(int(supervisor))
    return {**found, "cwd": str(Path.cwd())} if found else {}


def _masked(command: str) -> str | None:
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    return command if masked_words(words) == words else shlex.join(masked_words(words))


def _show_graph(metrics: MetricsWriter, model: keras.Model, x_spec: Any) -> None:
    """Writes the model's graph, which is traced for it: beside threads of the input, so no random state is put back."""
    graph = _graph(model, x_spec)
    if graph is not None:
        metrics.graph(graph)


def _graph(model: keras.Model, x_spec: Any) -> Any:
    """The forward pass as a concrete function; None where it cannot be traced by itself."""
    try:
        return tf.function(lambda x: model(x), autograph=False).get_concrete_function(x_spec)
    except Exception:  # a picture less; training does not depend on it
        return None
