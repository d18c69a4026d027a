"""hpc-train record-begin, record-end, next-run and in-container: for the scripts of slurm/, which ask, and obey."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import complain, say, warn
from hpc_train.errors import UserError
from hpc_train.text import visible

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
    launcher: Annotated[str, typer.Option(help="What has started the ranks.")] = "mpirun",
    settings: Annotated[list[str] | None, typer.Option("--set", hidden=True)] = None,
    debug_delay: Ignored = None,
    data_root: Ignored = None,
) -> None:
    """Note in the job-dir how the ranks ended; with --requeue, code 8 where that leads nowhere."""
    from hpc_train.jobs.launch import record_end
    from hpc_train.jobs.launch.error_excerpt import RunOutput

    printed = RunOutput(log, log_from, rank_logs, launcher) if log is not None else None
    job_dir = record_end.find_job_dir(job_file, job_dir, settings or [])
    sys.exit(record_end.record_end(job_dir, code, requeue, submission, program, printed, cancelled))


def next_run(
    nodes: Annotated[int, typer.Option(min=1, help="How many have ranks.")],
    min_nodes: Annotated[int, typer.Option(min=1, help="How many at least.")],
    ranks_per_node: Annotated[int, typer.Option(min=1)],
    code: Annotated[
        int | None, typer.Option(min=1, max=255, help="The exit code of the ranks. \\[default: none have run]")
    ] = None,
    job_file: JobFile = None,
    allocated: Annotated[str, typer.Option(metavar="A B", help="The job's nodes.")] = "",
    used: Annotated[str, typer.Option(metavar="A B", help="Those that had ranks.")] = "",
    answering: Annotated[str, typer.Option(metavar="A B", help="Those on which a step has just run.")] = "",
    states: Annotated[str, typer.Option(metavar="A=STATE B=STATE", help="As sinfo has them.")] = "",
    job_dir: JobDir = None,
    submission: Submission = None,
    program: Annotated[bool, typer.Option("--program", help="The ranks run a program of the user's own.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", hidden=True)] = None,
    data_root: Annotated[Path | None, typer.Option(hidden=True)] = None,
    log: Ignored = None,
    log_from: Ignored = None,
    rank_logs: Ignored = None,
    launcher: Ignored = None,
    debug_delay: Ignored = None,
) -> None:
    """Say where the ranks are to be started next.

    Prints two lines: "run A B …", "requeue" or "end", and why. Notes in the job-dir where they are started again.
    """
    from hpc_train.jobdir.slow_nodes import read_slow_nodes
    from hpc_train.jobs.launch import record_end
    from hpc_train.jobs.launch.nodes import Node, Wanted
    from hpc_train.jobs.launch.nodes import next_run as decide

    known = dict(text.partition("=")[::2] for text in states.split())
    folder = record_end.find_job_dir(job_file, job_dir, settings or [])
    slow = {_short(name) for name in read_slow_nodes(folder)} if folder is not None else set()
    seen = [
        Node(name, known.get(name, ""), name in answering.split(), name in used.split(), _short(name) in slow)
        for name in allocated.split()
    ]
    fits = _fits(job_file, job_dir, submission, settings or [], data_root, program)
    found = decide(seen, Wanted(nodes, min_nodes, ranks_per_node), code, fits)
    again = found.action == "run" and code is not None
    if again and (problem := record_end.record_next_run(folder, submission, program)) is not None:
        say(f"stop\n{visible(problem)}")
        return
    say(f"{' '.join((found.action, *found.nodes))}\n{visible(found.why)}")


def in_container(
    job_file: JobFile = None,
    job_dir: JobDir = None,
    submission: Submission = None,
    settings: Annotated[list[str] | None, typer.Option("--set", hidden=True)] = None,
    launcher: Annotated[str, typer.Option(help="What starts the ranks.")] = "mpirun",
    data_root: Annotated[Path | None, typer.Option(hidden=True)] = None,
    log: Ignored = None,
    debug_delay: Ignored = None,
) -> None:
    """Look into the job's container, and print the words that go before the command of each rank.

    Each is followed by a NUL, and they by the exit code: 0, or that of the job, whose end is noted in the job-dir. With
    --submission the container is that of the job, else that of HPC_TRAIN_CONTAINER.
    """
    from hpc_train.jobs.containers.job import container_from, of_submission, of_training
    from hpc_train.jobs.containers.start import CONTAINER_VARIABLE, contained_command
    from hpc_train.jobs.launch import record_end
    from hpc_train.jobs.record.submission import read_submission
    from hpc_train.outcome import EXIT_BAD_INPUT

    folder, program, code = record_end.find_job_dir(job_file, job_dir, settings or []), False, 0
    words: list[str] = []
    try:
        if submission is not None and folder is not None:
            if (told := read_submission(folder)) is None:
                raise UserError(f"{folder}: what was submitted cannot be read: submit the job again")
            job, program = of_submission(told, folder), told.kind == "program"
        elif job_file is not None and folder is not None:
            given = container_from(os.environ.get(CONTAINER_VARIABLE, ""))
            job = of_training(given, job_file, folder, settings or [], launcher == "mpirun", data_root)
        else:
            raise UserError(f"{CONTAINER_VARIABLE}: is for a job file whose job-dir is known: give --job-dir")
        words = contained_command(job, os.environ, warn)
    except UserError as error:
        complain(error)
        code = record_end.record_end(folder, EXIT_BAD_INPUT, None, submission, program) or EXIT_BAD_INPUT
    sys.stdout.buffer.write(b"".join(os.fsencode(word) + b"\0" for word in (*words, str(code))))
    sys.stdout.buffer.flush()


def _short(host: str) -> str:
    return host.partition(".")[0]


def _fits(
    job_file: Path | None,
    job_dir: Path | None,
    submission: str | None,
    settings: list[str],
    data_root: Path | None,
    program: bool,
) -> Callable[[int], bool]:
    """Whether a job can run on so many ranks; where its job file cannot be read, its ranks are left to say so."""
    from hpc_train.config.program import load_any
    from hpc_train.jobdir.paths import CODE
    from hpc_train.jobs.checks import why_not_on
    from hpc_train.jobs.record.submission import read_submission

    if program:
        return lambda ranks: True
    try:
        if submission is not None and job_dir is not None and (told := read_submission(job_dir)) is not None:
            job = load_any(job_dir / CODE / told.entry, told.settings, Path(told.job_file).parent)
        elif job_file is not None:
            job = load_any(job_file, settings, data_root)
        else:
            return lambda ranks: True
    except (UserError, OSError):
        return lambda ranks: True
    return lambda ranks: why_not_on(job, ranks) is None


COMMANDS = (
    Command("next-run", next_run, hidden=True, settings=TOLERANT),
    Command("record-begin", record_begin, hidden=True, settings=TOLERANT),
    Command("record-end", record_end, hidden=True, settings=TOLERANT),
    Command("in-container", in_container, hidden=True, settings=TOLERANT),
)
