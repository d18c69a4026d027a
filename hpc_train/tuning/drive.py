"""Runs a study on this machine: finds out what room there is, and has a driver fill it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hpc_train.errors import UserError
from hpc_train.folders import make_folder, remove_tree
from hpc_train.jobs.launch.launchers.mpirun import Mpirun
from hpc_train.jobs.schedulers import choose
from hpc_train.jobs.schedulers.base import DriverJobs
from hpc_train.jobs.site.tiers import load_tiers, resources_for
from hpc_train.processes import home_folder
from hpc_train.resilience.signals import StopSignals
from hpc_train.strategies import strategy_of
from hpc_train.telemetry.units import counted
from hpc_train.tuning.execution.driver import Driver, Listeners
from hpc_train.tuning.execution.first_look import GoalError
from hpc_train.tuning.execution.machine import slots_here, wanted_by
from hpc_train.tuning.execution.place import Place, start_otherwise
from hpc_train.tuning.search.folder import JOBS, StudySettings
from hpc_train.tuning.search.study import Study


@dataclass(frozen=True)
class DriveRequest:
    """How the trials of a study are to run.

    Attributes:
        parallel: How many at once; None: as the study says, or as many as there is room for.
        keeps_ranks: Whether a slot's ranks stay for its next trial.
        is_new: Whether the study was begun just now: its folder goes again where its goal cannot be reached.
    """

    parallel: int | None = None
    keeps_ranks: bool = True
    is_new: bool = False


def submit_drivers(study: Study, count: int, report: Callable[[str], None], is_new: bool = False) -> None:
    """Submits `count` jobs that run trials of a study until there are no more, and reports their number. Local.

    A study that `is_new`, begun for them, goes again where they are refused.

    Raises:
        UserError: A trial wants several nodes, a pack, packages or roles; there is no scheduler with such jobs, or it
            refuses them.
        SchedulerError: The scheduler does not answer.
    """
    try:
        _submit_drivers(study, count, report)
    except UserError:
        if is_new:
            remove_tree(study.folder.path)
        raise


def _submit_drivers(study: Study, count: int, report: Callable[[str], None]) -> None:
    folder, job = study.folder, study.job.job
    chosen = choose(None, os.environ)
    wants = chosen.completed(resources_for(job.resources, load_tiers(os.environ, home_folder())), os.environ)
    if wants.nodes > 1:
        raise UserError(
            f"resources.nodes: a {study.nouns.trial} runs on one node, and {wants.nodes} are wanted; give 1"
        )
    for key in ("pack", "requirements", *wants.roles):
        without = f"--set resources.{key}={'none' if key == 'pack' else 'null'}"
        if getattr(wants, key) not in (None, "none"):
            raise UserError(
                f"resources.{key}: is not for --as-jobs, whose jobs start from the environment that submits them, with "
                f"ranks that are alike; leave it out ({without}), and "
                f"begin the {study.nouns.study} anew"
            )
    study.reopen()
    jobs = folder.path / JOBS
    make_folder(jobs, 0o700)
    words = study.nouns.command, str(folder.path)
    number = chosen.submit_drivers(DriverJobs(study.job.job.name, jobs, words, wants, count), report)
    report(f"{counted(count, 'job')} of the {study.nouns.study} submitted, as {number}; what they print is in {jobs}")


def drive(study: Study, settings: StudySettings, request: DriveRequest, listeners: Listeners) -> int:
    """Runs trials until the study is over, or a signal comes; the exit code. Local; starts MPI ranks.

    Raises:
        UserError: The study cannot be run here, its goal is not reported, or its folder cannot be written.
    """
    job = study.job.job
    if job.resources.pack not in (None, "none"):
        listeners.report(f"resources.pack: is not used: {study.nouns.trial}s start from the environment itself")
    wanted = wanted_by(job, settings.ranks)
    parallel = request.parallel or study.job.tune.parallel_trials
    if (nodes := job.resources.nodes or 1) > 1:
        where = f"on one node, with all its {settings.ranks} ranks"
        listeners.report(f"resources.nodes is {nodes}, but a {study.nouns.trial} runs {where}")
    slots = slots_here(wanted, parallel)
    keeps_ranks = request.keeps_ranks and not start_otherwise(study.job.tune.space)
    place = Place(slots, Mpirun(), settings.ranks, strategy_of(job.run.strategy).threads, keeps_ranks)
    at_once = threading.Event()
    study.reopen()
    with StopSignals(at_once.set) as signals:
        try:
            return Driver(study, settings, place, signals, at_once, listeners).run()
        except GoalError:
            if request.is_new:
                remove_tree(study.folder.path)
            raise
