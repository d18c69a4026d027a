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

from hpc_train.cli.jobs import AsJson, Root, console, follow_to_end, refuse, show, warn
from hpc_train.errors import SchedulerError, UserError
from hpc_train.outcome import EXIT_AT_ONCE

if TYPE_CHECKING:
    from hpc_train.jobs.record.submission import Submission

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value for a key of the job file.")
]
BackendOption = Annotated[
    Literal["slurm", "local"] | None,
    typer.Option(help="Who runs it. [default: $HPC_TRAIN_BACKEND; or slurm where there is an sbatch, else local]"),
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
    wait: Wait = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Check a job, copy its code into a job-dir, and put it into the queue: Slurm's, or this machine's."""
    from hpc_train.config.resources import parse_memory
    from hpc_train.jobs.prepare import Prepared, Request, prepare
    from hpc_train.jobs.record.submission import root_of

    def prepared() -> Prepared:
        try:
            max_bytes = parse_memory(max_code_size) << 20
        except ValueError:
            raise UserError(f"--max-code-size: {max_code_size!r} is not a size; allowed: such as 500M or 2G") from None
        under = root_of(root, os.environ)
        request = Request(job_file, tuple(settings or ()), name, job_dir, under, backend, after, max_bytes)
        return prepare(request, warn)

    _queue(prepared, root, wait, dry_run, as_json)


def resume(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name, job-dir or number.")],
    settings: Settings = None,
    root: Root = None,
    backend: BackendOption = None,
    after: After = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let a job that has ended go on in its job-dir, with the code that was copied when it was submitted."""
    from hpc_train.jobs.inspect import job_dir_in_queues
    from hpc_train.jobs.prepare import Prepared, prepare_again
    from hpc_train.jobs.record.submission import find_job, root_of

    def prepared() -> Prepared:
        under = root_of(root, os.environ)
        found = find_job(job, under, job_dir_in_queues)
        return prepare_again(found, settings or [], after, under, backend, warn)

    _queue(prepared, root, wait, dry_run, as_json)


def _queue(prepare: Callable[[], object], root: Path | None, wait: bool, dry_run: bool, as_json: bool) -> None:
    from hpc_train.jobs.logs import JobOutput
    from hpc_train.jobs.prepare import Prepared
    from hpc_train.jobs.record.submission import root_of
    from hpc_train.jobs.submit import submit as put_in_queue

    try:
        prepared = prepare()
        assert isinstance(prepared, Prepared)
        if dry_run:
            sys.stdout.write(prepared.script)
            return
        output = JobOutput(prepared.job_dir, None)
        output.skip()  # where the job goes on
        submission = put_in_queue(prepared, warn)
    except (UserError, SchedulerError) as error:
        refuse(error)
    except KeyboardInterrupt:
        warn("interrupted: nothing is queued")
        sys.exit(EXIT_AT_ONCE)
    job_dir = prepared.job_dir
    job = submission.name if job_dir.parent == root_of(None, os.environ) else shlex.quote(str(job_dir))
    if as_json:
        print(json.dumps({**_without_secrets(submission), "job_dir": str(job_dir)}), flush=True)
    else:
        wants = submission.wants
        sizes = [_counted(wants.nodes, "node"), _counted(wants.ranks, "rank")]
        sizes += [f"{wants.gpus_per_node} GPUs a node"] if wants.gpus_per_node else []
        sizes += [wants.time] if wants.time else []
        queue = "Slurm job" if submission.backend == "slurm" else "local job"
        print(f"submitted {submission.name}: {queue} {submission.job_id}, {wants.tier}: {', '.join(sizes)}")
        print(f"job-dir {job_dir}")
        print(f"next: hpc-train describe {job}", f"hpc-train logs -f {job}", f"hpc-train cancel {job}", sep=" │ ")
        sys.stdout.flush()
    if wait:
        sys.exit(follow_to_end(job_dir, output, as_json))


def tiers(as_json: Annotated[bool, typer.Option("--json", help="One JSON object a tier and line.")] = False) -> None:
    """List the tiers that `resources.tier` can name, and what this cluster cannot give of them."""
    from hpc_train.jobs.checks import choose_backend, this_machine
    from hpc_train.jobs.schedulers.slurm import queue as slurm_queue
    from hpc_train.jobs.tiers import describe_tiers, load_tiers, tiers_files

    try:
        known = load_tiers(os.environ, Path.home())
        partitions = None
        if choose_backend(None, os.environ) == "slurm":
            try:
                partitions = slurm_queue.partitions()
            except SchedulerError as error:
                warn(f"warning: what this cluster has is not known: {error}")
        rows = describe_tiers(known, partitions, this_machine())
    except UserError as error:
        refuse(error)
    if as_json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return
    from hpc_train.jobs.tables import tier_table

    screen = console()
    files = (str(path.resolve()) for path in tiers_files(os.environ, Path.home()) if path.is_file())
    show(screen, tier_table(rows, screen.width), "from " + ", ".join(files))


def _without_secrets(submission: Submission) -> dict[str, Any]:
    """For programs, and the logs they leave: of the environment the names alone. Pure."""
    shown = asdict(replace(submission, code={}))
    del shown["code"], shown["token"]
    shown["resources"]["environment"] = sorted(submission.resources.get("environment") or {})
    keys = [setting.partition("=")[0] for setting in submission.settings]
    may_hold = [key.strip() == "resources" or key.strip().startswith("resources.environment") for key in keys]
    shown["settings"] = [
        key if hidden else setting for key, hidden, setting in zip(keys, may_hold, submission.settings, strict=True)
    ]
    return shown


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
