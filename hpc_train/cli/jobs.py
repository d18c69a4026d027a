"""hpc-train list, describe, logs, wait and cancel: submitted jobs, by name, job-dir or number."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import answer, complain, console, errors, say, show, warn
from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.job import Job
from hpc_train.outcome import EXIT_AT_ONCE
from hpc_train.text import LINES, visible

if TYPE_CHECKING:
    from hpc_train.jobs.columns import Key, Value
    from hpc_train.jobs.layout import Column
    from hpc_train.jobs.logs import JobOutput
    from hpc_train.jobs.record.status import JobStatus

    Asked = tuple[Key, list[Value]]
    """A column and its value of each job."""

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Its name, job-dir or number.")]
Root = Annotated[
    Path | None, typer.Option(help="The folder that holds the job-dirs. \\[default: $HPC_TRAIN_ROOT, or runs]")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text: an object a line.")]


@answer()
def list_jobs(
    root: Root = None,
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; can be given again.")] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="By a column, metric or setting: metrics best first, others rising."),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,KEY…", help="Beside the name: columns, settings (params.*), metrics (best.accuracy)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs by name, with their status; or what differs between them, best first."""
    from hpc_train.jobs.inspect import inspect_jobs
    from hpc_train.jobs.record.job_dirs import job_dirs, root_of
    from hpc_train.jobs.record.status import STATES

    with errors():
        under, wanted = root_of(root, os.environ), [text.upper() for text in state or []]
        if unknown := [text for text in wanted if text not in STATES]:
            raise UserError(f"--state: {unknown[0]!r} is not allowed; allowed: {', '.join(STATES)}")
        found = inspect_jobs(list(job_dirs(under)))
        jobs = [status for status in found if not wanted or status.state in wanted]
        shown: list[Asked] = []
        more: list[Asked] = []
        if jobs and (sort is not None or columns is not None):
            jobs, shown, more = _asked(jobs, sort, columns, reverse)
        elif reverse:
            jobs.reverse()
    for note in dict.fromkeys(status.note for status in jobs if status.note):
        warn(f"warning: {note}")
    if as_json:
        for number, status in enumerate(jobs):
            asked = {"columns": {key.name: key.typed(values[number]) for key, values in shown}} if shown else {}
            print(json.dumps({**asdict(status), **asked}))
    elif not jobs:
        say(f"no jobs in {under}" + (" in that state" if wanted else ""))
    else:
        _show_jobs(jobs, shown, more)


def _asked(
    jobs: list[JobStatus], sort: str | None, columns: str | None, reverse: bool
) -> tuple[list[JobStatus], list[Asked], list[Asked]]:
    """`jobs` in the order asked for, the columns asked for, and the one that they are sorted by."""
    from hpc_train.jobs.columns import JobValues, in_order, keys_named

    values = [JobValues(status) for status in jobs]
    shown = keys_named(columns, "--columns", values) if columns is not None else []
    by = keys_named(sort, "--sort", values) if sort is not None else []
    if len(by) > 1:
        raise UserError(f"--sort: {sort!r} names several; give one")
    if by:
        values = in_order(values, by[0], reverse)
    elif reverse:
        values.reverse()
    asked, more = ([(key, [key.value(job) for job in values]) for key in keys] for keys in (shown, by))
    return [job.status for job in values], asked, more


def _show_jobs(jobs: list[JobStatus], shown: list[Asked], sorted_by: list[Asked]) -> None:
    from hpc_train.jobs.layout import asked_column, asked_table
    from hpc_train.jobs.tables import TITLES, job_table, state_column

    def column(key: Key, values: list[Value]) -> Column:
        return state_column(jobs) if key.own == "state" else asked_column(key.name, values, key.own)

    screen = console()
    if not shown:
        more = [column(*asked) for asked in sorted_by if asked[0].own not in TITLES]  # which it has in any case
        show(screen, job_table(jobs, screen.width, more))
        return
    names = asked_column("name", [job.name for job in jobs])
    table, left_out = asked_table([names, *(column(*asked) for asked in shown if asked[0].own != "name")], screen.width)
    show(screen, table)
    if left_out:
        warn(f"no room for {', '.join(left_out)}; a wider terminal, fewer columns or --json shows them")


@answer()
def describe(job: JobName, root: Root = None, as_json: AsJson = False) -> None:
    """Show all that is known of a job."""
    from hpc_train.jobs.inspect import with_queue_energy

    with errors():
        status = with_queue_energy(Job.find(job, root).status())
    if as_json:
        print(json.dumps(asdict(status)))
        return
    from hpc_train.jobs.tables import description

    show(console(), description(status))


@answer()
def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only what this rank prints.")] = None,
    tail: Annotated[int | None, typer.Option("-n", "--tail", min=0, help="Only the last lines.")] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job prints. Ctrl-C leaves the job running."""
    from hpc_train.jobs.inspect import output_elsewhere

    with errors():
        found = Job.find(job, root)
        status, output = found.status(), found.output(rank, follow)
    if not output.is_there() and not (follow and not status.has_ended):
        why = f" ({status.reason})" if status.reason else ""
        warn(f"{status.name} is {status.state}{why}, and has printed nothing that is kept in its job-dir")
        if (where := output_elsewhere(found.job_dir)) is not None:
            warn(where)
        return
    with errors(), _interruptible(f"stopped showing; {status.name} goes on"):
        _print_lines(found, output, follow, tail, as_json)


def wait(job: JobName, root: Root = None, as_json: AsJson = False) -> None:
    """Wait until a job has ended, and exit as it did."""
    with errors():
        found = Job.find(job, root)
    with _interruptible("stopped waiting; the job goes on"):
        status = found.wait(watch=_Notes(waiting=False))
    _exit_as(status, as_json)


def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names, job-dirs or numbers.")],
    save: Annotated[bool, typer.Option("--save", help="Have the ranks save a checkpoint first.")] = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs. The last checkpoint stays, and `hpc-train resume` goes on from it."""
    with errors():
        found = [Job.find(job, root) for job in jobs]
    code = 0
    for job in found:
        try:
            done = job.cancel(save)
        except (UserError, SchedulerError) as error:
            code = complain(error)
            continue
        before = done.before
        if as_json:
            fields = {"name": before.name, "job_dir": before.job_dir, "was": before.state}
            print(json.dumps({**fields, "cancelled": done.ended is None}))
        elif done.ended is not None:
            say(f"{before.name}: nothing to cancel: {done.ended}")
        elif done.left_over:
            say(f"{before.name}: has ended before; what was left of it is ended, too")
        else:
            how = "saves, and is cancelled then" if done.saves else "cancelled"
            say(f"{before.name}: {how} (it was {before.state})")
    sys.exit(code)


def follow_to_end(job: Job, output: JobOutput, as_json: bool) -> NoReturn:
    """Shows what a job prints until it has ended, and exits as it did. For `hpc-train submit --wait`."""
    with errors(), _interruptible(f"stopped waiting; the job goes on: hpc-train describe {job.job_dir}"):
        _print_lines(job, output, True, None, as_json)
        status = job.wait(watch=_Notes(waiting=False))
    _exit_as(status, as_json)


WAITED_FOR = ("QUEUED", "REQUEUED", "PREPARING")
NAMED_AFTER_SECS = 5.0
"""A job that has reported its end is gone in an instant as a rule; what keeps it is named where it stays."""


class _Notes:
    """Shows what a job waits for, and whether its scheduler answers, on standard error: each once.

    Args:
        waiting: Also what it waits for.
    """

    def __init__(self, waiting: bool) -> None:
        self._waiting, self._shown = waiting, ""
        self._finishing_since: float | None = None

    def _finishing(self, status: JobStatus) -> bool:
        if not status.finishing:
            self._finishing_since = None
            return False
        self._finishing_since = self._finishing_since or time.monotonic()
        return time.monotonic() - self._finishing_since > NAMED_AFTER_SECS

    def __call__(self, status: JobStatus) -> None:
        text = status.note or ""
        if not text and (self._finishing(status) or (self._waiting and status.state in WAITED_FOR)):
            text = f"{status.name} is {status.state}" + (f" ({status.reason})" if status.reason else "")
        if text and text != self._shown:
            warn(text)
        self._shown = text


def _print_lines(job: Job, output: JobOutput, follow: bool, tail: int | None, as_json: bool) -> None:
    for line in job.lines(output, follow, tail, _Notes(waiting=True)):
        if line is None:
            sys.stdout.flush()
        else:  # asdict is slow, and lines can be millions
            print(json.dumps(vars(line)) if as_json else visible(line.text.replace("\r", "\n"), LINES, colours=True))


def _exit_as(status: JobStatus, as_json: bool) -> NoReturn:
    """Reports how a job has ended, and exits with its code."""
    if as_json:
        print(json.dumps(asdict(status)))
    else:
        if status.note:
            warn(f"warning: {status.note}")
        warn(f"{status.name}: {status.state}" + (f" ({status.reason})" if status.reason else ""))
    sys.exit(status.exit_code)


@contextmanager
def _interruptible(what: str) -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        warn(what)
        sys.exit(EXIT_AT_ONCE)


COMMANDS = (
    Command(
        "list",
        list_jobs,
        "Jobs",
        examples=(
            "hpc-train list",
            "hpc-train list --state running --state queued",
            "hpc-train list --sort accuracy --columns params.learning_rate,accuracy",
        ),
    ),
    Command("describe", describe, "Jobs", examples=("hpc-train describe first",)),
    Command("logs", logs, "Jobs", examples=("hpc-train logs -f first", "hpc-train logs --rank 1 -n 20 first")),
    Command("wait", wait, "Jobs", examples=("hpc-train wait first",)),
    Command("cancel", cancel, "Jobs", examples=("hpc-train cancel first", "hpc-train cancel --save first second")),
)
