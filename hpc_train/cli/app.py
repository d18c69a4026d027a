"""The command line. Exit codes are those of hpc_train.errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpc_train.cli.checkpoints import checkpoints
from hpc_train.cli.doctor import doctor
from hpc_train.cli.evaluate import evaluate
from hpc_train.cli.export import export, predict
from hpc_train.cli.jobs import Verbs, cancel, complain, describe, list_jobs, logs, wait
from hpc_train.cli.record import TOLERANT, record_begin, record_end
from hpc_train.cli.report import report
from hpc_train.cli.shard import app as shard_app
from hpc_train.cli.submit import Settings, resume, submit, tiers
from hpc_train.errors import UserError
from hpc_train.resilience.signals import StopSignals

app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
JobDir = Annotated[Path | None, typer.Option(help="Where the job keeps everything. [default: runs/<name of the job>]")]
DebugDelay = Annotated[
    list[str] | None,
    typer.Option(metavar="RANK:MS", help="Let a rank sleep so long after each step, to see what slow ranks do."),
]


@app.callback()
def about(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what helps to find a fault, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors alone.")] = False,
    log_level: Annotated[
        list[str] | None,
        typer.Option(metavar="[LOGGER=]LEVEL", help="As hpc_train.checkpoint=debug; can be given again."),
    ] = None,
) -> None:
    """Train TensorFlow/Keras models on MPI ranks: one job file, HDF5 shards, exact restarts."""
    from hpc_train.telemetry.log_levels import LEVELS_VARIABLE, parse_levels

    if verbose and quiet:
        sys.exit(complain("--verbose and --quiet: give one of them"))
    given = [os.environ.get(LEVELS_VARIABLE, ""), *(["debug"] if verbose else []), *(["warning"] if quiet else [])]
    text = ",".join(filter(None, [*given, *(log_level or [])]))
    try:
        parse_levels(text)
    except UserError as error:
        sys.exit(complain(error))
    if text:  # the ranks that a command starts have it from here
        os.environ[LEVELS_VARIABLE] = text


@app.command(name="train")
def train_command(
    context: typer.Context,
    job_file: JobFile,
    job_dir: JobDir = None,
    settings: Settings = None,
    debug_delay: DebugDelay = None,
    data_root: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train, evaluate and export. Run it alone for one rank, or on each rank under mpirun or horovodrun."""
    from hpc_train.config.job import JobConfig, load_job, strategy_in
    from hpc_train.distributed.excepthook import tell
    from hpc_train.distributed.world import join_world
    from hpc_train.strategies import strategy_of
    from hpc_train.training.from_job import train_job

    try:
        delays = _delays(debug_delay or [])
        world = join_world(strategy_of(strategy_in(job_file, settings or [])).threads)
    except UserError as error:
        sys.exit(complain(error))
    try:
        job = JobConfig.model_validate(
            world.on_chief(lambda: load_job(job_file, settings or [], data_root).model_dump(mode="json"))
        )
        folder = job_file.absolute().parent
        first = job.run.parameter_servers if job.run.strategy == "async" else 0
        if first < world.size and any(not first <= rank < world.size for rank in delays):
            raise UserError(f"--debug-delay: the ranks that train are {first} to {world.size - 1}")
        delay_secs = delays.get(world.rank, 0.0)
        train_job(world, job, job_dir or Path("runs") / job.name, folder, context.obj, delay_secs)
    except Exception as error:
        sys.exit(tell(world, error))


@app.command()
def launch(
    job_file: JobFile,
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="How many ranks to start on this machine.")] = 1,
    job_dir: JobDir = None,
    settings: Settings = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="How often to start again after a crash.")] = 0,
    debug_delay: DebugDelay = None,
) -> None:
    """Train on several ranks of this machine: runs mpirun with the right flags."""
    from hpc_train.config.job import load_job
    from hpc_train.jobs.launch.mpirun import launch as launch_ranks

    try:
        job = load_job(job_file, settings or [])
        _delays(debug_delay or [])
        more = [f"--debug-delay={given}" for given in debug_delay or []]
        more += [f"--set={setting}" for setting in settings or []]
        sys.exit(launch_ranks(ranks, job_file, job_dir or Path("runs") / job.name, max_restarts, more))
    except UserError as error:
        sys.exit(complain(error))


app.command(name="evaluate")(evaluate)
app.command(name="export")(export)
app.command(name="predict")(predict)
app.command(name="report")(report)
app.command(name="submit")(submit)
app.command(name="list")(list_jobs)
app.command(name="describe")(describe)
app.command(name="logs")(logs)
app.command(name="wait")(wait)
app.command(name="cancel")(cancel)
app.command(name="resume")(resume)
app.command(name="tiers")(tiers)
app.command(name="doctor")(doctor)
app.command(name="record-begin", hidden=True, context_settings=TOLERANT)(record_begin)
app.command(name="record-end", hidden=True, context_settings=TOLERANT)(record_end)
app.command(name="checkpoints")(checkpoints)
app.add_typer(shard_app, name="shard", help="Write files of other formats as HDF5 shards, or inspect shards.")


def _delays(given: list[str]) -> dict[int, float]:
    """Seconds by rank, from `RANK:MS` texts."""
    delays = {}
    for text in given:
        rank, _, ms = text.partition(":")
        try:
            delays[int(rank)] = float(ms) / 1000
        except ValueError:
            raise UserError(f"--debug-delay: {text!r} is not allowed; allowed: RANK:MS, as in 2:50") from None
        if int(rank) < 0 or not 0 <= delays[int(rank)] <= 3600:
            raise UserError(f"--debug-delay: {text!r} is not allowed; a rank from 0, and 0 to 3600000 ms")
    return delays


def run(signals: StopSignals) -> None:
    """Runs the command that the arguments name; `train` stops when `signals` has received one."""
    app(prog_name="hpc-train", obj=signals)
