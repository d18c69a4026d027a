"""hpc-train du and clean: what job-dirs take on the disk, and what of it can go."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.jobs import Root
from hpc_train.cli.terminal import answer, answered, console, errors, say, show, warn
from hpc_train.errors import UserError
from hpc_train.outcome import EXIT_AT_ONCE, EXIT_FAILED
from hpc_train.telemetry.units import counted, size

if TYPE_CHECKING:
    from hpc_train.jobs.clean import Cleaning

Folders = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB|FOLDER", help="Jobs, or folders of job-dirs; none: all jobs under the root."),
]


@answer()
def du(
    folders: Folders = None,
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a job-dir and line, in bytes.")] = False,
) -> None:
    """Show what job-dirs take on the disk: checkpoints, exports, logs, the copy of the code, TensorBoard's files.

    Allocated bytes, as `du` counts them; what several job-dirs share by hard links counts once, links do not.
    """
    from hpc_train.jobdir.usage import Inodes, usage_of

    with errors():
        job_dirs, where = _named(folders, root)
    seen: Inodes = set()
    found = []
    for job_dir in job_dirs:
        try:
            found.append((job_dir, usage_of(job_dir, seen)))
        except OSError as error:
            warn(f"{job_dir}: cannot be read: {error.strerror}")
            continue
        if unread := found[-1][1].unread:
            warn(f"{job_dir}: without the content of {counted(unread, 'folder')} that cannot be read")
    if as_json:
        for job_dir, usage in found:
            print(json.dumps({"name": job_dir.name, "job_dir": str(job_dir), "total": usage.total, **usage.bytes}))
    elif not found:
        say(f"no jobs in {where}")
    else:
        from hpc_train.jobs.tables import usage_table

        screen = console()
        show(screen, usage_table([(job_dir.name, usage) for job_dir, usage in found], screen.width))


def clean(
    folders: Folders = None,
    keep: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many of the newest checkpoints stay, beside the best. \\[default: 1, or all where "
            "keep_checkpoint_max is 0]",
        ),
    ] = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="Remove the job-dirs that are named, whole.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what can go, and remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    root: Root = None,
) -> None:
    """Show what of job-dirs can go and how much that is, and remove it if you say so.

    Of jobs that have ended: left-overs of writes that were cut short, damaged checkpoints, old checkpoints, the output
    of earlier runs. The newest and the best checkpoint, exports, code, metrics and logs/job.out stay, so that the job
    can be resumed, evaluated and exported.
    """
    from hpc_train.jobs.clean import cleanings

    with errors():
        if keep is not None and keep < 1:
            raise UserError(f"--keep: {keep} is not allowed; allowed: a whole number from 1")
        if jobs and not folders:
            raise UserError("--jobs removes whole job-dirs: name them")
        job_dirs, where = _named(folders, root, whole=jobs)
        found = cleanings(job_dirs, keep, jobs)
    for cleaning in found:
        if cleaning.refused is not None:
            warn(f"{cleaning.job_dir.name}: is left alone: {cleaning.refused}")
    wanted = [cleaning for cleaning in found if cleaning.removals]
    if not wanted:
        refused = any(cleaning.refused is not None for cleaning in found)
        if refused and folders:
            say("nothing was removed")
        else:
            say(f"nothing to remove in {where}" if found else f"no jobs in {where}")
        sys.exit(EXIT_FAILED if jobs or (refused and folders) else 0)
    from hpc_train.jobs.tables import cleaning_table

    screen = console()
    show(screen, cleaning_table(wanted, screen.width))
    if not dry_run and (yes or _agreed(wanted)):
        sys.exit(_remove(wanted))
    say("nothing was removed")


def _named(folders: list[str] | None, root: Path | None, whole: bool = False) -> tuple[list[Path], str]:
    """The job-dirs to look at, and where they are, in words; `whole`: job-dirs alone are allowed, not their folders."""
    from hpc_train.jobs.record.job_dirs import find_job_dir, find_job_dirs, job_dirs, root_of
    from hpc_train.jobs.schedulers import job_dir_in_queues

    under = root_of(root, os.environ)
    if not folders:
        return list(job_dirs(under)), str(under)
    if not whole:
        return find_job_dirs(folders, under, job_dir_in_queues), ", ".join(folders)
    try:
        return [find_job_dir(each, under, job_dir_in_queues) for each in dict.fromkeys(folders)], ", ".join(folders)
    except UserError as error:
        raise UserError(f"--jobs: {error}; a folder of job-dirs is not removed: name those in it") from None


def _agreed(wanted: list[Cleaning]) -> bool:
    """Asks; exits where there is nobody to answer."""
    amount = f"{size(sum(cleaning.bytes for cleaning in wanted))} of {counted(len(wanted), 'job')}"
    if not sys.stdin.isatty():
        with errors():
            raise UserError(
                f"nothing was removed: nobody can be asked here; --yes removes {amount}, --dry-run only shows"
            )
    try:
        return answered(f"remove {amount}? [y/N] ")
    except KeyboardInterrupt:
        warn("nothing was removed")
        sys.exit(EXIT_AT_ONCE)


def _remove(wanted: list[Cleaning]) -> int:
    from hpc_train.jobs.clean import clean as clean_job_dir

    removed = problems = 0
    try:
        for cleaning in wanted:
            done = clean_job_dir(cleaning)
            removed += done.bytes
            if done.problem is not None:
                problems += 1
                warn(f"{cleaning.job_dir.name}: {done.problem}")
    except KeyboardInterrupt:
        warn("stopped; what has gone is gone, and the rest can go another time")
        sys.exit(EXIT_AT_ONCE)
    say(f"removed {size(removed)}")
    return EXIT_FAILED if problems else 0


COMMANDS = (
    Command("du", du, "Jobs", place=6, examples=("hpc-train du", "hpc-train du first /scratch/old_runs")),
    Command(
        "clean",
        clean,
        "Jobs",
        place=7,
        examples=(
            "hpc-train clean --dry-run",
            "hpc-train clean first second",
            "hpc-train clean --jobs runs/bad_one --yes",
        ),
    ),
)
