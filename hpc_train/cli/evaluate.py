"""hpc-train evaluate: a separate evaluator, which only reads the job-dir."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpc_train.cli.command import Command, Data, JobDir, Settings, named_job_dir
from hpc_train.cli.terminal import errors
from hpc_train.errors import UserError

if TYPE_CHECKING:
    from hpc_train.evaluation.standalone.job_watcher import Training


def evaluate(
    context: typer.Context,
    job_dir: JobDir,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with newer checkpoints, until training has ended.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where results go. \\[default: JOBDIR.evaluation]")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Of the checkpoint. \\[default: the newest]")] = None,
    every_checkpoint: Annotated[
        bool, typer.Option("--every-checkpoint", help="All checkpoints in turn, not only the newest.")
    ] = False,
    poll_secs: Annotated[float, typer.Option(min=0.1, max=3600, help="Between looks at the job-dir.")] = 10.0,
    idle_timeout_secs: Annotated[
        float | None, typer.Option(min=0, help="End, with code 1, when nothing new has come for so long.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Only this one of several evaluation sets; of a single one, another name.")
    ] = None,
    data: Data = None,
    settings: Settings = None,
) -> None:
    """Evaluate checkpoints of a job that runs elsewhere, or has ended; run it alone, or on several ranks under mpirun.

    The job-dir is only read. The exit code is 0 also where training has failed; 10 where it was killed without a word.
    """
    from hpc_train.distributed.excepthook import report_error
    from hpc_train.distributed.startup import join_world
    from hpc_train.evaluation.standalone.chief import EvaluationRequest
    from hpc_train.evaluation.standalone.job import evaluate_job

    with errors():
        if step is not None and (follow or every_checkpoint):
            raise UserError("--step is for a single evaluation: leave out --follow and --every-checkpoint")
        if idle_timeout_secs is not None and not follow:
            raise UserError("--idle-timeout-secs is for --follow")
        job_dir = named_job_dir(job_dir)
        job_dir = job_dir.resolve() if ".." in job_dir.parts else job_dir.absolute()
        out = out.absolute() if out is not None else Path(f"{job_dir}.evaluation")
        if job_dir.resolve() in (out.resolve(), *out.resolve().parents):
            raise UserError(f"--out: {out} is in the job-dir, which is only read; choose a folder outside of it")
        limits = (poll_secs, idle_timeout_secs)
        changes = (tuple(settings or ()), tuple(data or ()))
        request = EvaluationRequest(job_dir, out, follow, step, every_checkpoint, *limits, name, *changes)
        world = join_world("serialized")
    try:
        code = evaluate_job(world, request, context.obj, ask)
    except Exception as error:
        sys.exit(report_error(world, error))
    sys.exit(code)


def ask(job_dir: Path) -> tuple[Training, str] | None:
    """How a silent job has ended, as far as its queue or this machine knows; None: it has not, or nobody knows."""
    from hpc_train.jobs.inspect import inspect_job
    from hpc_train.jobs.record.submission import read_submission
    from hpc_train.telemetry.status import read_status

    submission = read_submission(job_dir)
    if submission is not None and submission.job_id is None and read_status(job_dir).get("job_id") is None:
        return None  # looking would note the number in the job-dir
    found = inspect_job(job_dir)
    if found.state == "LOST":
        return "lost", found.reason or "its queue does not know it"
    if found.state in ("SUCCEEDED", "FAILED", "CANCELLED"):
        return "ended", f"{found.state.lower()}{f': {found.reason}' if found.reason else ''}"
    return None


COMMANDS = (
    Command(
        "evaluate",
        evaluate,
        "Train",
        examples=(
            "hpc-train evaluate runs/mine",
            "hpc-train evaluate runs/mine --step 800",
            "mpirun -np 2 hpc-train evaluate runs/mine --follow",
        ),
    ),
)
