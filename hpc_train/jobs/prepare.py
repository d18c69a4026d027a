"""Prepares a job for its queue: checks all that can be checked, and writes nothing."""

from __future__ import annotations

import getpass
import os
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig, load_any
from hpc_train.config.resources import Backend
from hpc_train.errors import UserError
from hpc_train.jobdir.paths import CODE
from hpc_train.jobs.checks import (
    Problems,
    check_code,
    check_files,
    check_limits,
    check_ranks,
    choose_backend,
    code_files,
    data_files,
    least_ranks,
    with_defaults_of_sbatch,
)
from hpc_train.jobs.inspect import job_dir_in_queues, look, this_queue
from hpc_train.jobs.record.submission import (
    Submission,
    check_name,
    find_job,
    in_full,
    name_at,
    name_in_use,
    read_submission,
)
from hpc_train.jobs.schedulers.local.runner import processes_of, start_of_job
from hpc_train.jobs.schedulers.slurm.script import render
from hpc_train.jobs.snapshot.snapshot import Plan, check_outside, plan_snapshot
from hpc_train.jobs.tiers import load_tiers, resources_for

SCRIPTS = Path(__file__).parent / "launch" / "scripts"
"""slurm/ of the checkout, which is installed with the package."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What a user asks `hpc-train submit` for.

    Attributes:
        settings: `KEY=VALUE` each, laid over the job file.
        name, job_dir: One of them names the job; neither: the job file's name and the time.
        root: The folder of job-dirs.
        backend: None: Slurm where there is an sbatch.
        after: A job that has to succeed before.
        max_code_bytes: What the copy of the code may take.
    """

    job_file: Path
    settings: tuple[str, ...]
    name: str | None
    job_dir: Path | None
    root: Path
    backend: Backend | None
    after: str | None
    max_code_bytes: int


@dataclass(frozen=True)
class Prepared:
    """A job that can be queued as far as can be known.

    Attributes:
        plan: The code to copy; None where a job goes on with what was copied.
        before: The token of the submission that is to be replaced then.
    """

    submission: Submission
    job_dir: Path
    plan: Plan | None
    script: str
    before: str | None = None


def prepare(request: Request, say: Say) -> Prepared:
    """Checks all of a job, and writes nothing.

    Raises:
        UserError: With all that is wrong.
    """
    job_file = request.job_file.absolute()
    job, folder = load_any(job_file, request.settings), job_file.parent
    now = time.time()
    problems, job_dir = Problems(), request.root / job.name
    with problems.gathered():
        job_dir = _job_dir(request, job.name, now)
        _check_new(job_dir)
    with problems.gathered():
        check_code(job, folder)
    plan = None
    with problems.gathered():
        plan = plan_snapshot(folder, request.max_code_bytes, [Path(job_file.name), *code_files(job)], data_files(job))
        check_outside(folder, job_dir, plan.rules)
        if plan.rules.note is not None:
            say(plan.rules.note)
    draft = Submission(
        token=secrets.token_hex(8),
        name=job_dir.name,
        kind="program" if isinstance(job, ProgramConfig) else "model",
        backend="local",
        submitted=now,
        user=getpass.getuser(),
        host=socket.gethostname(),
        job_file=str(job_file),
        entry=job_file.name,
        settings=request.settings,
        resources={},
        code={},
        version=_version(),
    )
    submission = _completed(draft, job, job_dir, request.backend, request.after, request.root, problems, say)
    problems.refuse()
    return Prepared(submission, job_dir, plan, _script(submission, job_dir))


def prepare_again(
    job_dir: Path, settings: Sequence[str], after: str | None, root: Path, backend: Backend | None, say: Say
) -> Prepared:
    """Checks a job that has ended, and is to go on in its job-dir with the code that was copied, and writes nothing.

    Args:
        settings: Laid over the job file beside those of the submission before.

    Raises:
        UserError: With all that is wrong.
    """
    before = read_submission(job_dir)
    if before is None:
        raise UserError(
            f"{job_dir}: was not submitted by hpc-train submit; start it as before, with the same job file and job-dir"
        )
    stands = look(job_dir, this_queue())
    if not stands.has_ended:
        raise UserError(f"{before.name}: is {stands.state}; only a job that has ended can be resumed")
    if before.backend == "local" and (left := processes_of(before.token)):
        pids = ", ".join(str(process.pid) for process in left)
        raise UserError(
            f"{before.name}: processes of it still run ({pids}): end them first, with "
            f"hpc-train cancel {shlex.quote(str(job_dir))}"
        )
    laid_over = (*before.settings, *settings)
    job = load_any(job_dir / CODE / before.entry, laid_over, Path(before.job_file).parent)
    draft = replace(
        before,
        token=secrets.token_hex(8),
        submitted=time.time(),
        user=getpass.getuser(),
        host=socket.gethostname(),
        settings=laid_over,
        version=_version(),
        after=None,
        after_dir=None,
        job_id=None,
    )
    problems = Problems()
    with problems.gathered():
        check_code(job, job_dir / CODE)
    submission = _completed(draft, job, job_dir, backend or before.backend, after, root, problems, say)
    problems.refuse()
    return Prepared(submission, job_dir, None, _script(submission, job_dir), before.token)


def _completed(
    draft: Submission,
    job: JobConfig | ProgramConfig,
    job_dir: Path,
    asked: Backend | None,
    after: str | None,
    root: Path,
    problems: Problems,
    say: Say,
) -> Submission:
    """The draft with what it runs on, where, and after what."""
    done, ranks = draft, least_ranks(job)  # what the job wants is not known where its tier is not
    with problems.gathered():
        done = replace(done, backend=choose_backend(asked, os.environ))
    with problems.gathered():
        wants = resources_for(job.resources, load_tiers(os.environ, Path.home()))
        if done.backend == "slurm":
            wants = with_defaults_of_sbatch(wants, os.environ)
        done, ranks = replace(done, resources=wants.model_dump(mode="json")), wants.ranks
        check_limits(wants, done.backend, say)
    with problems.gathered():
        check_ranks(job, ranks)
    if after is not None:
        with problems.gathered():
            job_id, path = _predecessor(after, root, done.backend)
            done = replace(done, after=job_id, after_dir=str(path))
    with problems.gathered():
        check_files(job, job_dir, Path(done.after_dir) if done.after_dir is not None else None)
    if isinstance(job, ProgramConfig):
        done = replace(done, args=tuple(job.words(Path(done.job_file).parent, job_dir)))
    return done


def _job_dir(request: Request, name: str, now: float) -> Path:
    if request.job_dir is not None and request.name is not None:
        raise UserError("--name and --job-dir exclude each other: the name of a job is that of its job-dir")
    if request.job_dir is not None:
        job_dir = in_full(request.job_dir)
        check_name(job_dir.name, "--job-dir")
        return job_dir
    return request.root / (check_name(request.name) if request.name is not None else name_at(name, now))


def _check_new(job_dir: Path) -> None:
    """UserError where the job-dir is there, or cannot be made."""
    if os.path.lexists(job_dir):
        raise name_in_use(job_dir)
    parent = job_dir.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise UserError(f"{job_dir}: cannot be the job-dir, because {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{job_dir}: the job-dir cannot be made ({parent} is read-only, or belongs to others)")


def _predecessor(after: str, root: Path, backend: Backend) -> tuple[str | None, Path]:
    """Number and job-dir of the job to wait for; no number where it has succeeded already."""
    path = find_job(after, root, job_dir_in_queues)
    stands = look(path, this_queue())
    if stands.state == "SUCCEEDED":
        return None, path
    if stands.has_ended:
        raise UserError(f"--after: {stands.name} has ended as {stands.state}; resume it first, or leave --after out")
    if stands.backend != backend or stands.job_id is None:
        raise UserError(f"--after: {stands.name} is in another queue ({stands.backend}) than this job ({backend})")
    return stands.job_id, path


def _script(submission: Submission, job_dir: Path) -> str:
    if submission.backend == "slurm":
        return render(submission, job_dir, Path(sys.executable), (SCRIPTS / "ranks.sh").read_text())
    start = start_of_job(job_dir, submission, job_dir / "logs/run-0")
    settings = [f"{name}={value}" for name, value in start.settings.items()]
    words = ["env", *settings, *start.command]
    return f"cd {shlex.quote(str(start.cwd))}\n{shlex.join(words)}\n"


def _version() -> str:
    from hpc_train import __version__

    return __version__
