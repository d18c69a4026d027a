"""Prepares a job for its queue: checks all that can be checked, and writes nothing."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_train import __version__
from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig, load_any
from hpc_train.config.tune.section import NOT_FOLLOWED
from hpc_train.config.types import NAME_PATTERN
from hpc_train.errors import UserError
from hpc_train.folders import exposure
from hpc_train.jobdir.paths import CODE, SECRETS_FILE
from hpc_train.jobdir.trust import check_job_dir
from hpc_train.jobs.checks import (
    check_files,
    check_launcher,
    check_limits,
    check_min_nodes,
    check_nodes,
    check_ranks,
    check_roles,
    check_stage_dir,
    code_files,
    data_files,
    least_ranks,
)
from hpc_train.jobs.code import check_code
from hpc_train.jobs.environment import Environment, with_environment, with_environment_again
from hpc_train.jobs.inspect import FINISH_SECS, inspect_job, leftover
from hpc_train.jobs.problems import Problems
from hpc_train.jobs.record.installation import problem_of, remedy, this_installation
from hpc_train.jobs.record.job_dirs import check_name, find_job, in_full, name_at, name_in_use
from hpc_train.jobs.record.submission import Submission, read_submission
from hpc_train.jobs.schedulers import choose, job_dir_in_queues, scheduler
from hpc_train.jobs.schedulers.base import ReportLine, Scheduler
from hpc_train.jobs.site.site import load_site
from hpc_train.jobs.site.tiers import load_tiers, resources_for
from hpc_train.jobs.snapshot.snapshot import DEFAULT_MAX_BYTES, LOOKS_SECRET, Plan, check_outside, plan_snapshot
from hpc_train.processes import home_folder, user_name
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.status import read_status, sound

MAX_NAMED = 10
FINISH_POLL_SECS = 0.2


@dataclass(frozen=True)
class Placement:
    """Where and when a job is to run.

    Attributes:
        root: The folder of job-dirs, in which `after` is looked for.
        backend: The name of a scheduler; None: $HPC_TRAIN_BACKEND, or the first one that is here.
        after: A job that has to succeed before: its name, job-dir or number.
    """

    root: Path
    backend: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Request:
    """What a user asks `hpc-train submit` for.

    Attributes:
        settings: `KEY=VALUE` each, laid over the job file.
        name, job_dir: One of them names the job; neither: the job file's name and the time.
        max_code_bytes: What the copy of the code may take.
        with_secrets: Whether files that look like secrets are copied, too.
    """

    job_file: Path
    placement: Placement
    settings: tuple[str, ...] = ()
    name: str | None = None
    job_dir: Path | None = None
    max_code_bytes: int = DEFAULT_MAX_BYTES
    with_secrets: bool = False


@dataclass(frozen=True)
class PreparedJob:
    """A job that can be queued as far as can be known.

    Attributes:
        plan: The code to copy; None where a job goes on with what was copied.
        before: The token of the submission that is to be replaced then.
        environment: What is made for its ranks to start from.
    """

    submission: Submission
    job_dir: Path
    plan: Plan | None
    script: str
    before: str | None = None
    environment: Environment = Environment()  # noqa: RUF009  (frozen)


def prepare(request: Request, report: ReportLine) -> PreparedJob:
    """Checks all of a job, and writes nothing.

    Raises:
        UserError: With all that is wrong.
    """
    job_file = request.job_file.absolute()
    job, folder = load_any(job_file, request.settings), job_file.parent
    now = time.time()
    if isinstance(job, JobConfig) and job.tune is not None:
        report(NOT_FOLLOWED)
    problems, job_dir = Problems(), request.placement.root / job.name
    with problems.gathered():
        job_dir = _job_dir(request, job.name, now)
        _check_new(job_dir)
    with problems.gathered():
        check_code(job, folder)
    plan = None
    with problems.gathered():
        always = [Path(job_file.name), *code_files(job)]
        plan = plan_snapshot(folder, request.max_code_bytes, always, data_files(job), with_secrets=request.with_secrets)
        check_outside(folder, job_dir, plan.rules)
        if secret := [one.path for one in plan.left_out if one.why == LOOKS_SECRET]:
            more = f" and {len(secret) - MAX_NAMED} more" if len(secret) > MAX_NAMED else ""
            named = ", ".join(secret[:MAX_NAMED]) + more
            report(f"not copied, since it looks like secrets (--with-secrets copies it): {named}")
        if plan.rules.note is not None:
            report(plan.rules.note)
    draft = Submission(
        token=secrets.token_hex(8),
        name=job_dir.name,
        kind="program" if isinstance(job, ProgramConfig) else "model",
        backend="",
        submitted=now,
        user=user_name(),
        host=socket.gethostname(),
        job_file=str(job_file),
        entry=job_file.name,
        settings=request.settings,
        resources={},
        code={},
        version=__version__,
        installation=this_installation(),
    )
    submission = _completed(draft, job, job_dir, request.placement, problems, report)
    environment = Environment()
    with problems.gathered():
        submission, environment = with_environment(submission, report)
    problems.refuse()
    script = scheduler(submission.backend).script(submission, job_dir)
    return PreparedJob(submission, job_dir, plan, script, environment=environment)


def prepare_again(
    job_dir: Path, settings: Sequence[str], placement: Placement, report: ReportLine, with_this_version: bool = False
) -> PreparedJob:
    """Checks a job that has ended, and is to go on in its job-dir with the code that was copied, and writes nothing.

    Args:
        settings: Laid over the job file beside those of the submission before.
        placement: Without a backend, that of the submission before.
        with_this_version: Go on with the hpc_train that this process runs, not the one of the submission before.

    Raises:
        UserError: With all that is wrong.
    """
    before = read_submission(job_dir)
    if before is None:
        raise UserError(f"{job_dir}: was not submitted by hpc-train submit; {_started_again(job_dir)}")
    status = inspect_job(job_dir)
    deadline = time.monotonic() + FINISH_SECS
    while status.finishing and time.monotonic() < deadline:  # who resumes it may have looked at its job-dir alone
        time.sleep(FINISH_POLL_SECS)
        status = inspect_job(job_dir)
    remedy = f"end that first, with hpc-train cancel {shlex.quote(str(job_dir))}"
    if status.finishing:
        raise UserError(f"{before.name}: has reported its end, but is still {status.reason}: {remedy}")
    if not status.has_ended:
        raise UserError(f"{before.name}: is {status.state}; only a job that has ended can be resumed")
    if left := leftover(job_dir):
        raise UserError(f"{before.name}: processes of it still run ({', '.join(map(str, left))}): {remedy}")
    laid_over = (*before.settings, *settings)
    job = load_any(job_dir / CODE / before.entry, laid_over, Path(before.job_file).parent)
    draft = replace(
        before,
        token=secrets.token_hex(8),
        name=job_dir.name if re.fullmatch(NAME_PATTERN, job_dir.name) else before.name,
        submitted=time.time(),
        user=user_name(),
        host=socket.gethostname(),
        settings=laid_over,
        after=None,
        after_dir=None,
        job_id=None,
    )
    problems = Problems()
    with problems.gathered():
        draft = _installed(draft, job_dir, with_this_version, report)
    with problems.gathered():
        if (warning := check_job_dir(job_dir)) is not None:
            report(f"warning: {warning}")
    with problems.gathered():
        check_code(job, job_dir / CODE)
    placement = replace(placement, backend=placement.backend or before.backend)
    submission = _completed(draft, job, job_dir, placement, problems, report)
    environment = Environment()
    with problems.gathered():
        submission, environment = with_environment_again(submission, before, job_dir, report)
    problems.refuse()
    script = scheduler(submission.backend).script(submission, job_dir)
    return PreparedJob(submission, job_dir, None, script, before.token, environment)


def _installed(draft: Submission, job_dir: Path, with_this_version: bool, report: ReportLine) -> Submission:
    """The draft of a resumed job with the installation that it goes on with."""
    here, found = this_installation(), draft.installation
    if found is None or with_this_version:
        return replace(draft, version=here.version, installation=here)
    if found == here and found.path(job_dir) is not None:
        return draft  # the copy is made again where somebody has removed or damaged it
    if (problem := problem_of(found, job_dir)) is not None:
        raise UserError(f"{draft.name}: {problem}; {remedy(job_dir)}; this is {here}")
    if found.fingerprint != here.fingerprint:
        report(f"goes on with {found}, as it was submitted; --with-this-version takes {here}")
    return draft


def _started_again(job_dir: Path) -> str:
    """How a job that was started by hand goes on, as the end of a sentence."""
    status = sound(read_status(job_dir))
    is_own = (job_dir / STATUS_FILE).is_file() and (job_dir / STATUS_FILE).lstat().st_uid == os.geteuid()
    if (command := status.get("command")) is None or not is_own or exposure(job_dir) is not None:
        return "start it as before, with the same job file and job-dir"
    folder = f"cd {shlex.quote(status['cwd'])} && " if "cwd" in status else ""
    options = ", with the options of sbatch that it had" if command.startswith("sbatch ") else ""
    return f"it goes on where it is started as before{options}: {folder}{command.strip()}"


def _completed(
    draft: Submission,
    job: JobConfig | ProgramConfig,
    job_dir: Path,
    placement: Placement,
    problems: Problems,
    report: ReportLine,
) -> Submission:
    """The draft with what it runs on, where, and after what."""
    survives = isinstance(job, JobConfig) and job.run.on_lost_worker == "continue"
    done = replace(draft, survives=survives)
    ranks, chosen = least_ranks(job), None  # what the job wants is not known where its tier is not
    with problems.gathered():
        chosen = choose(placement.backend, os.environ)
        done = replace(done, backend=chosen.name)
    with problems.gathered():
        done = replace(done, variables=dict(load_site(os.environ).variables))
        wants = resources_for(job.resources, load_tiers(os.environ, home_folder()))
        ranks = wants.ranks
        if chosen is not None:
            wants = chosen.completed(wants, os.environ)
        done = replace(done, resources=wants.model_dump(mode="json"))
        if lost := done.lost_secrets:
            raise UserError(
                f"resources.environment: the values of {', '.join(lost)} are not known any more: the job-dir has no "
                f"{SECRETS_FILE} that can be read; give them again: --set resources.environment.{lost[0]}=…"
            )
        if chosen is not None:
            check_limits(wants, chosen, report)
        check_nodes(job, wants, report)
        check_min_nodes(job, wants)
        check_launcher(job, wants)
        check_roles(job, wants)
    with problems.gathered():
        check_ranks(job, ranks)
    with problems.gathered():
        check_stage_dir(job)
    if placement.after is not None:
        with problems.gathered():
            number, path = _predecessor(placement.after, placement.root, chosen)
            done = replace(done, after=number, after_dir=str(path))
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
    if request.name is not None:
        return request.placement.root / check_name(request.name)
    while os.path.lexists(job_dir := request.placement.root / name_at(name, now)):
        now += 1  # another job of this second
    return job_dir


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


def _predecessor(after: str, root: Path, chosen: Scheduler | None) -> tuple[str | None, Path]:
    """Number and job-dir of the job to wait for; no number where it has succeeded already."""
    path = find_job(after, root, job_dir_in_queues)
    status = inspect_job(path)
    if status.state == "SUCCEEDED":
        return None, path
    if status.has_ended:
        raise UserError(f"--after: {status.name} has ended as {status.state}; resume it first, or leave --after out")
    if chosen is not None and (status.backend != chosen.name or status.job_id is None):
        raise UserError(f"--after: {status.name} is in another queue ({status.backend}) than this job ({chosen.name})")
    return status.job_id, path
