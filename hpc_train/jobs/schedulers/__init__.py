"""The schedulers there are, and which one a job is for or belongs to. A new one takes a package, and a line below."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from hpc_train.errors import UserError

if TYPE_CHECKING:
    from hpc_train.jobs.record.status import JobRecord
    from hpc_train.jobs.schedulers.base import Backend, Scheduler

SCHEDULERS = {
    "slurm": "hpc_train.jobs.schedulers.slurm.scheduler:SlurmScheduler",
    "local": "hpc_train.jobs.schedulers.local.scheduler:LocalScheduler",
}
"""By the names for `--backend`. Where none is named, the first one that is here is taken."""
BACKEND_VARIABLE = "HPC_TRAIN_BACKEND"


def scheduler(name: str) -> Scheduler:
    """The scheduler of this name, which has to be one of SCHEDULERS."""
    found: Scheduler = resolve_name(SCHEDULERS[name])()
    return found


def choose(asked: str | None, env: Mapping[str, str]) -> Scheduler:
    """Who is to run a job: as asked, by an option or by BACKEND_VARIABLE; else the first one that is here.

    Raises:
        UserError: There is no such scheduler, or it is not here.
    """
    chosen = asked or env.get(BACKEND_VARIABLE)
    if not chosen:
        return next(found for found in map(scheduler, SCHEDULERS) if found.absence() is None)
    if chosen not in SCHEDULERS:
        raise UserError(
            f"{'backend' if asked else BACKEND_VARIABLE}: {chosen!r} is not allowed; allowed: {', '.join(SCHEDULERS)}"
        )
    found = scheduler(chosen)
    if (why := found.absence()) is not None:
        raise UserError(why)
    return found


def backend_named(name: str) -> Backend:
    """The one that a job's submission or status names, whether this version knows it or not."""
    from hpc_train.jobs.schedulers.base import ByHand, Unknown

    if name == ByHand.name:
        return ByHand()
    return scheduler(name) if name in SCHEDULERS else Unknown(name)


def backend_of(record: JobRecord) -> Backend:
    """Who runs a job: the scheduler it was submitted to, or whose number its ranks were given; else nobody."""
    from hpc_train.jobs.schedulers.base import ByHand

    if record.submission is not None:
        return backend_named(record.submission.backend)
    running = (found for found in map(scheduler, SCHEDULERS) if found.runs_unsubmitted(record.status))
    return next(running, None) or ByHand()


def job_dir_in_queues(number: str) -> Path | None:
    """The job-dir of the job with this number, as far as the queues know; the nearest one is asked first."""
    found = (scheduler(name).job_dir_of(number) for name in reversed(SCHEDULERS))
    return next((path for path in found if path is not None), None)
