"""hpc-train record-begin and record-end: for slurm/ranks.sh, which notes in the job-dir what the ranks can't."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hpc_train.cli.command import Command

TOLERANT: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""context_settings of both: they are given the arguments of `hpc-train train`, too."""

JobFile = Annotated[Path | None, typer.Argument(metavar="[JOB.yaml]")]
JobDir = Annotated[Path | None, typer.Option()]
Submission = Annotated[str | None, typer.Option(metavar="TOKEN", help="Only in the job-dir of this submission.")]
Ignored = Annotated[list[str] | None, typer.Option(hidden=True)]


def record_begin(
    job_dir: JobDir = None,
    submission: Submission = None,
    ranks: Annotated[int, typer.Option(min=1)] = 1,
    pid: Annotated[int | None, typer.Option(help="Of what starts the ranks. \\[default: the parent process]")] = None,
) -> None:
    """Note in the job-dir that a program of the user's own is about to run."""
    from hpc_train.jobs.launch import record_end

    record_end.record_begin(job_dir, submission, ranks, pid or os.getppid())


def record_end(
    code: Annotated[int, typer.Option(min=0, max=255, help="The exit code of the ranks.")],
    job_file: JobFile = None,
    job_dir: JobDir = None,
    requeue: Annotated[Literal["warning", "preemption", "lost-node"] | None, typer.Option()] = None,
    cancelled: Annotated[bool, typer.Option("--cancelled", help="Slurm has ended the job at somebody's wish.")] = False,
    submission: Submission = None,
    program: Annotated[bool, typer.Option("--program", help="The ranks ran a program of the user's own.")] = False,
    log: Annotated[Path | None, typer.Option(help="The job's output, to look for the error in.")] = None,
    log_from: Annotated[int, typer.Option(min=0, help="How many bytes of it are older than this run.")] = 0,
    rank_logs: Annotated[Path | None, typer.Option(help="The folder of mpirun's --output-filename.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", hidden=True)] = None,
    debug_delay: Ignored = None,
    data_root: Ignored = None,
) -> None:
    """Note in the job-dir how the ranks ended; with --requeue, code 8 where that leads nowhere."""
    from hpc_train.jobs.launch import record_end
    from hpc_train.jobs.launch.error_excerpt import RunOutput

    printed = RunOutput(log, log_from, rank_logs) if log is not None else None
    job_dir = record_end.find_job_dir(job_file, job_dir, settings or [])
    sys.exit(record_end.record_end(job_dir, code, requeue, submission, program, printed, cancelled))


COMMANDS = (
    Command("record-begin", record_begin, hidden=True, settings=TOLERANT),
    Command("record-end", record_end, hidden=True, settings=TOLERANT),
)
