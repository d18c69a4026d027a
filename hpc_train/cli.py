"""The command line: hpc-train train, launch, shard. Exit codes are those of hpc_train.errors."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from hpc_train.errors import EXIT_BAD_INPUT, EXIT_FAILED, UserError
from hpc_train.resilience.signals import StopSignals

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
JobDir = Annotated[Path | None, typer.Option(help="Where the job keeps everything. [default: runs/<name of the job>]")]


@app.callback()
def about() -> None:
    """Train TensorFlow/Keras models on MPI ranks: one job file, HDF5 shards, exact restarts."""


@app.command(name="train")
def train_command(context: typer.Context, job_file: JobFile, job_dir: JobDir = None) -> None:
    """Train, evaluate and export. Run it alone for one rank, or on each rank under mpirun or horovodrun."""
    from hpc_train.cluster.uncaught import tell
    from hpc_train.cluster.world import join_world
    from hpc_train.config.job import JobConfig, load_job
    from hpc_train.estimator.from_job import train_job

    try:
        world = join_world()
    except UserError as error:
        _complain(error)
        sys.exit(EXIT_BAD_INPUT)
    try:
        job = JobConfig.model_validate(world.on_chief(lambda: load_job(job_file).model_dump(mode="json")))
        train_job(world, job, job_dir or Path("runs") / job.name, job_file.absolute().parent, context.obj)
    except Exception as error:
        sys.exit(tell(world, error))


@app.command()
def launch(
    job_file: JobFile,
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="How many ranks to start on this machine.")] = 1,
    job_dir: JobDir = None,
) -> None:
    """Train on several ranks of this machine: runs mpirun with the right flags."""
    from hpc_train.config.job import load_job
    from hpc_train.jobs.local import launch as launch_ranks

    try:
        load_job(job_file)
        sys.exit(launch_ranks(ranks, job_file, job_dir))
    except UserError as error:
        _complain(error)
        sys.exit(EXIT_BAD_INPUT)


@app.command()
def shard(
    prefix: Annotated[str, typer.Argument(help="Folder and beginning of the file names, as in data/train.")],
    sources: Annotated[
        list[str], typer.Argument(help="FILE.npz, FILE.h5, or NAME=FILE for .npy and IDX (also .gz) files.")
    ],
    shards: Annotated[int, typer.Option(min=1, help="Number of files.")] = 8,
) -> None:
    """Write arrays as HDF5 shards: PREFIX-00000.h5 and so on."""
    from hpc_train.data.convert import open_columns
    from hpc_train.data.writer import write_shards

    try:
        with ExitStack() as stack:
            columns = open_columns(sources, stack)
            paths = write_shards(prefix, columns, shards)
            rows = next(iter(columns.values())).shape[0]
    except UserError as error:
        _complain(error)
        sys.exit(EXIT_BAD_INPUT)
    except OSError as error:
        _complain(f"{prefix}: cannot be written: {error}")
        sys.exit(EXIT_FAILED)
    print(f"{rows} rows of {', '.join(columns)} in {len(paths)} files: {paths[0]} … {paths[-1].name}")


def _complain(error: object) -> None:
    for line in str(error).splitlines():
        print(f"hpc-train: error: {line}", file=sys.stderr)


def run(signals: StopSignals) -> None:
    """Runs the command that the arguments name; `train` stops when `signals` has received one."""
    app(prog_name="hpc-train", obj=signals)
