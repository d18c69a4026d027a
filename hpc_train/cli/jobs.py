"""hpc-train list, describe, logs, wait and cancel: submitted jobs, by name, job-dir or number."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from hpc_train.errors import EXIT_AT_ONCE, EXIT_BAD_INPUT, EXIT_NO_SCHEDULER, SchedulerError, UserError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hpc_train.jobs.logs import JobOutput, Line
    from hpc_train.jobs.record.status import Standing

Job = Annotated[str, typer.Argument(metavar="JOB", help="Its name, job-dir or number.")]
Root = Annotated[
    Path | None, typer.Option(help="The folder that holds the job-dirs. [default: $HPC_TRAIN_ROOT, or runs]")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text: an object a line.")]

FIRST_WAIT_SECS, LONGEST_WAIT_SECS = 0.5, 10.0
PIPE_WIDTH = 100_000
"""Of tables in a pipe, where nothing is cut or wrapped."""


def list_jobs(
    root: Root = None,
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; can be given again.")] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs by name, with how they stand."""
    from hpc_train.jobs.inspect import look_at_all, this_queue
    from hpc_train.jobs.record.status import STATES
    from hpc_train.jobs.record.submission import job_dirs, root_of

    with _errors():
        under, wanted = root_of(root, os.environ), [text.upper() for text in state or []]
        if unknown := [text for text in wanted if text not in STATES]:
            raise UserError(f"--state: {unknown[0]!r} is not allowed; allowed: {', '.join(STATES)}")
        standings = look_at_all(list(job_dirs(under)), this_queue())
    standings = [stands for stands in standings if not wanted or stands.state in wanted]
    for note in dict.fromkeys(stands.note for stands in standings if stands.note):
        warn(f"warning: {note}")
    if as_json:
        for stands in standings:
            print(json.dumps(asdict(stands)))
    elif not standings:
        print(f"no jobs in {under}" + (" in that state" if wanted else ""))
    else:
        from hpc_train.jobs.tables import job_table

        screen = console()
        show(screen, job_table(standings, screen.width))


def describe(job: Job, root: Root = None, as_json: AsJson = False) -> None:
    """Tell all that is known of a job."""
    from hpc_train.jobs.inspect import look, this_queue

    with _errors():
        stands = look(_find(job, root), this_queue())
    if as_json:
        print(json.dumps(asdict(stands)))
        return
    from hpc_train.jobs.tables import description

    show(console(), description(stands))


def logs(
    job: Job,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only what this rank prints.")] = None,
    tail: Annotated[int | None, typer.Option("-n", "--tail", min=0, help="Only the last lines.")] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job prints. Ctrl-C leaves the job running."""
    from hpc_train.jobdir.paths import LOGS
    from hpc_train.jobs.inspect import look, this_queue
    from hpc_train.jobs.logs import JobOutput, last_lines, rank_files

    with _errors():
        job_dir = _find(job, root)
        stands = look(job_dir, this_queue())
        output = JobOutput(job_dir, None if stands.ranks == 1 and rank == 0 else rank)
        if rank is not None and stands.ranks is not None and rank >= stands.ranks:
            raise UserError(f"--rank: {rank} is not allowed; {stands.name} has the ranks 0 to {stands.ranks - 1}")
        if not output.is_there() and not (follow and not stands.has_ended):
            if rank is not None and (job_dir / LOGS).is_dir() and not rank_files(job_dir) and stands.started:
                raise UserError(
                    f"--rank: what single ranks of {stands.name} print was not kept apart: that takes Open MPI, and "
                    "several ranks; look at all of its output"
                )
            why = f" ({stands.reason})" if stands.reason else ""
            warn(f"{stands.name} is {stands.state}{why}, and has printed nothing that is kept in its job-dir")
            return
    with _interruptible(f"stopped showing; {stands.name} goes on"):
        for line in last_lines(output, tail, last=not follow):
            _print_line(line, as_json)
        if follow:
            _follow(job_dir, output, as_json)


def wait(job: Job, root: Root = None, as_json: AsJson = False) -> None:
    """Wait until a job has ended, and exit as it did."""
    with _errors():
        job_dir = _find(job, root)
    with _interruptible("stopped waiting; the job goes on"):
        stands = _wait_for_end(job_dir)
    _tell_end(stands, as_json)
    sys.exit(stands.exit_code)


def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names, job-dirs or numbers.")],
    save: Annotated[bool, typer.Option("--save", help="Have the ranks save a checkpoint first.")] = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs. The last checkpoint stays, and `hpc-train resume` goes on from it."""
    from hpc_train.jobs.cancel import cancel as cancel_job
    from hpc_train.jobs.inspect import look, this_queue

    with _errors():
        found = [_find(job, root) for job in jobs]
    code = 0
    for job_dir in found:
        try:
            before, had_effect = cancel_job(job_dir, save, this_queue())
            after = look(job_dir, this_queue()) if had_effect and not save else None
        except (UserError, SchedulerError) as error:
            code = complain(error)
            continue
        saves = save and before.state not in ("QUEUED", "REQUEUED")
        ended = after is not None and after.state in ("SUCCEEDED", "FAILED")  # just before
        if as_json:
            cancelled = had_effect and not ended
            told = {"name": before.name, "job_dir": before.job_dir, "was": before.state, "cancelled": cancelled}
            print(json.dumps(told))
        elif after is not None and ended:
            print(f"{before.name}: nothing to cancel: {after.state}")
        elif had_effect:
            print(f"{before.name}: {'saves, and is cancelled then' if saves else 'cancelled'} (it was {before.state})")
        else:
            print(f"{before.name}: nothing to cancel: {before.state}")
    sys.exit(code)


def follow_to_end(job_dir: Path, output: JobOutput, as_json: bool) -> int:
    """Shows what a job prints until it has ended; its exit code. For `hpc-train submit --wait`."""
    with _interruptible(f"stopped waiting; the job goes on: hpc-train describe {job_dir}"):
        _follow(job_dir, output, as_json)
        stands = _wait_for_end(job_dir)
    _tell_end(stands, as_json)
    assert stands.exit_code is not None, "it has ended"
    return stands.exit_code


def _find(job: str, root: Path | None) -> Path:
    from hpc_train.jobs.inspect import job_dir_in_queues
    from hpc_train.jobs.record.submission import find_job, root_of

    return find_job(job, root_of(root, os.environ), job_dir_in_queues)


def _follow(job_dir: Path, output: JobOutput, as_json: bool) -> None:
    """Prints what comes until the job has ended; on a terminal's standard error, what it waits for meanwhile."""
    from hpc_train.jobs.inspect import look, this_queue
    from hpc_train.jobs.logs import follow

    queue, told = this_queue(), ""

    def has_ended() -> bool:
        nonlocal told
        stands = look(job_dir, queue)
        waiting = f"{stands.name} is {stands.state}" + (f" ({stands.reason})" if stands.reason else "")
        if stands.note or stands.state in ("QUEUED", "REQUEUED", "PREPARING"):
            text = stands.note or waiting
            if text != told:
                warn(text)
            told = text
        return stands.has_ended

    for line in follow(output, has_ended):
        if line is None:
            sys.stdout.flush()
        else:
            _print_line(line, as_json)


def _wait_for_end(job_dir: Path) -> Standing:
    from hpc_train.jobs.inspect import look, this_queue

    queue, secs, told = this_queue(), FIRST_WAIT_SECS, ""
    while not (stands := look(job_dir, queue)).has_ended:
        if stands.note and stands.note != told:
            warn(stands.note)
        told = stands.note or ""
        time.sleep(secs)
        secs = min(LONGEST_WAIT_SECS, 1.2 * secs)
    return stands


def _tell_end(stands: Standing, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(stands)))
    else:
        warn(f"{stands.name}: {stands.state}" + (f" ({stands.reason})" if stands.reason else ""))


def _print_line(line: Line, as_json: bool) -> None:
    print(json.dumps(vars(line)) if as_json else line.text)  # asdict is slow, and lines can be millions


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (UserError, SchedulerError) as error:
        sys.exit(complain(error))


@contextmanager
def _interruptible(what: str) -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        warn(what)
        sys.exit(EXIT_AT_ONCE)


def console() -> Console:
    """A console on standard output: colours and its width on a terminal; wide and plain in a pipe."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=PIPE_WIDTH, force_terminal=False, no_color=True, highlight=False)


def show(screen: Console, *what: RenderableType) -> None:
    """Prints to standard output as on `screen`; without the blanks that rich fills lines up with in a pipe."""
    with screen.capture() as captured:
        for one in what:
            screen.print(one)
    text = captured.get()
    sys.stdout.write(text if screen.is_terminal else re.sub(" +$", "", text, flags=re.MULTILINE))
    sys.stdout.flush()


class Verbs(TyperGroup):
    """The commands of hpc-train: where who reads their output leaves, as in `| head`, that is no error."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; its exit code stays, or is 0 where it could not go on printing."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.exit(0)
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    print(end="", file=stream, flush=True)
                except BrokenPipeError:  # what is left must not fail once more when Python ends
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def refuse(error: Exception) -> NoReturn:
    """Tells what is wrong, and exits."""
    sys.exit(complain(error))


def complain(error: object) -> int:
    """Tells what is wrong; the exit code."""
    with suppress(BrokenPipeError):
        for line in str(error).splitlines():
            print(f"hpc-train: error: {line}", file=sys.stderr)
    return EXIT_NO_SCHEDULER if isinstance(error, SchedulerError) else EXIT_BAD_INPUT


def warn(text: str) -> None:
    """Tells something on standard error."""
    with suppress(BrokenPipeError):
        print(f"hpc-train: {text}", file=sys.stderr, flush=True)
