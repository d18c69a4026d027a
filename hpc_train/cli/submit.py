"""hpc-train submit, resume and tiers: jobs on their way into a queue."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hpc_train.cli.command import Command, JobFile, Settings
from hpc_train.cli.jobs import AsJson, JobName, Root, follow_to_end
from hpc_train.cli.terminal import answer, console, errors, say, show, warn
from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.job import Job
from hpc_train.jobs.schedulers import SCHEDULERS, backend_named, choose
from hpc_train.outcome import EXIT_AT_ONCE
from hpc_train.processes import home_folder
from hpc_train.telemetry.units import counted
from hpc_train.text import LINES, visible

if TYPE_CHECKING:
    from hpc_train.jobs.prepare import PreparedJob
    from hpc_train.jobs.record.submission import Submission

    BackendName = str
else:
    BackendName = Literal[tuple(SCHEDULERS)]

BackendOption = Annotated[
    BackendName | None,
    typer.Option(help="Who runs it. \\[default: $HPC_TRAIN_BACKEND; or slurm where there is an sbatch, else local]"),
]
After = Annotated[str | None, typer.Option(metavar="JOB", help="Start once that job has succeeded.")]
Wait = Annotated[bool, typer.Option("--wait", help="Show what it prints until it has ended, and exit as it does.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the batch script; check all, and do nothing.")]


def submit(
    job_file: JobFile,
    settings: Settings = None,
    name: Annotated[str | None, typer.Option(help="[default: that of the job file, and the time]")] = None,
    job_dir: Annotated[Path | None, typer.Option(help="The job-dir itself; its last part is the name.")] = None,
    root: Root = None,
    backend: BackendOption = None,
    after: After = None,
    max_code_size: Annotated[
        str, typer.Option(metavar="SIZE", help="What the copy of the code may take; 64M are 64 MiB.")
    ] = "64M",
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Copy files that look like secrets, too: .env, *.pem, id_* …")
    ] = False,
    wait: Wait = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Check a job, copy its code into a job-dir, and put it into the queue: Slurm's, or this machine's."""
    from hpc_train.config.resources import parse_memory
    from hpc_train.jobs.prepare import Placement, Request, prepare
    from hpc_train.jobs.record.job_dirs import root_of

    def prepared() -> PreparedJob:
        try:
            max_bytes = parse_memory(max_code_size) << 20
        except ValueError:
            raise UserError(f"--max-code-size: {max_code_size!r} is not a size; allowed: such as 500M or 2G") from None
        placement = Placement(root_of(root, os.environ), backend, after)
        request = Request(job_file, placement, tuple(settings or ()), name, job_dir, max_bytes, with_secrets)
        return prepare(request, warn)

    _queue(prepared, wait, dry_run, as_json)


def resume(
    job: JobName,
    settings: Settings = None,
    root: Root = None,
    backend: BackendOption = None,
    after: After = None,
    with_this_version: Annotated[
        bool, typer.Option("--with-this-version", help="Go on with this hpc_train, not the one it was submitted with.")
    ] = False,
    wait: Wait = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let a job that has ended go on in its job-dir, with the code that was copied when it was submitted."""
    from hpc_train.jobs.prepare import Placement, prepare_again
    from hpc_train.jobs.record.job_dirs import root_of

    def prepared() -> PreparedJob:
        placement = Placement(root_of(root, os.environ), backend, after)
        return prepare_again(Job.find(job, root).job_dir, settings or [], placement, warn, with_this_version)

    _queue(prepared, wait, dry_run, as_json)


def _queue(prepare: Callable[[], PreparedJob], wait: bool, dry_run: bool, as_json: bool) -> None:
    from hpc_train.jobs.submit import submit as put_in_queue

    with errors():
        try:
            prepared = prepare()
            if dry_run:
                with answer():
                    script = prepared.script
                    sys.stdout.write(visible(script, LINES) if sys.stdout.isatty() else script)
                return
            job = Job(prepared.job_dir)
            output = job.output()
            output.skip()  # where the job goes on
            submission = put_in_queue(prepared, warn)
        except KeyboardInterrupt:
            warn("interrupted: nothing is queued")
            sys.exit(EXIT_AT_ONCE)
    _show_submission(submission, job.job_dir, as_json)
    if wait:
        follow_to_end(job, output, as_json)


def _show_submission(submission: Submission, job_dir: Path, as_json: bool) -> None:
    from hpc_train.jobdir.paths import CODE
    from hpc_train.jobs.record.job_dirs import root_of

    if as_json:
        print(json.dumps({**_without_secrets(submission), "job_dir": str(job_dir)}), flush=True)
    else:
        wants = submission.wants
        nodes = sum(one.nodes for one in wants.components)
        sizes = [counted(nodes, "node"), counted(wants.ranks, "rank")]
        sizes += [f"{wants.gpus_per_node} GPUs a node"] if wants.gpus_per_node and not wants.roles else []
        sizes += [wants.time] if wants.time else []
        words = backend_named(submission.backend).words
        say(f"submitted {submission.name}: {words} {submission.job_id}, {wants.tier}: {', '.join(sizes)}")
        say(f"job-dir {job_dir}")
        if submission.kind == "program":
            say(f"relative paths of the program, such as ./checkpoints, are below {job_dir / CODE}")
        named = submission.name if job_dir.parent == root_of(None, os.environ) else shlex.quote(str(job_dir))
        say(f"next: hpc-train describe {named} │ hpc-train logs -f {named} │ hpc-train cancel {named}")
        sys.stdout.flush()


@answer()
def tiers(as_json: Annotated[bool, typer.Option("--json", help="One JSON object a tier and line.")] = False) -> None:
    """List the tiers that `resources.tier` can name, and what this cluster cannot give of them."""
    from hpc_train.jobs.schedulers.base import Limits
    from hpc_train.jobs.site.tiers import describe_tiers, load_tiers, tiers_files

    with errors():
        known = load_tiers(os.environ, home_folder())
        limits: Limits = lambda _: []  # noqa: E731
        try:
            limits = choose(None, os.environ).limits()
        except SchedulerError as error:
            warn(f"warning: what this cluster has is not known: {error}")
        rows = describe_tiers(known, limits)
    if as_json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return
    from hpc_train.jobs.tables import tier_table

    screen = console()
    files = (str(path.resolve()) for path in tiers_files(os.environ, home_folder()) if path.is_file())
    show(screen, tier_table(rows, screen.width), visible("from " + ", ".join(files)))


def _without_secrets(submission: Submission) -> dict[str, Any]:
    """For programs, and the logs they leave. Pure."""
    shown = asdict(replace(submission.masked, code={}))
    del shown["code"], shown["token"], shown["folder"]
    return shown


COMMANDS = (
    Command(
        "submit",
        submit,
        "Jobs",
        place=1,
        examples=(
            "hpc-train submit job.yaml --name first",
            "hpc-train submit job.yaml --set params.learning_rate=0.01 --wait",
            "hpc-train submit job.yaml --backend slurm --dry-run",
        ),
    ),
    Command(
        "resume",
        resume,
        "Jobs",
        examples=("hpc-train resume first", "hpc-train resume first --set train.max_steps=4000 --wait"),
    ),
    Command("tiers", tiers, "This machine", place=6, examples=("hpc-train tiers",)),
)
