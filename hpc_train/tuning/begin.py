"""How a study is begun, or opened to go on: from a job file, or from its folder."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from hpc_train import __version__
from hpc_train.config.job import job_in
from hpc_train.config.overrides import overridden
from hpc_train.config.tune.trial_settings import check_study, jobs_of_files
from hpc_train.config.yaml_loader import read_yaml
from hpc_train.errors import UserError
from hpc_train.jobs.checks import check_files, check_ranks, code_files, data_files
from hpc_train.jobs.code import check_code
from hpc_train.jobs.problems import Problems
from hpc_train.jobs.record.job_dirs import DEFAULT_ROOT
from hpc_train.jobs.site.tiers import load_tiers, resources_for
from hpc_train.jobs.snapshot.snapshot import check_outside, plan_snapshot
from hpc_train.processes import home_folder
from hpc_train.text import visible
from hpc_train.tuning.search.folder import LONGEST_NAME, StudyFolder, StudyJob, StudySettings, described, differences
from hpc_train.tuning.search.samplers import sampler_of
from hpc_train.tuning.search.study import Study

SUFFIX = "_study"
"""Of the folder of a study, behind the job's name, where nobody says otherwise."""
MOST_TOLD = 5
"""Differences between two jobs."""


@dataclass(frozen=True)
class StudyRequest:
    """What `hpc-train tune JOB.yaml`, or `hpc-train ensemble JOB.yaml`, is asked for.

    Attributes:
        folder: In which all is kept; None: runs/<name>_study, or runs/<name>_ensemble.
        settings: `KEY=VALUE` each, laid over the job file.
        ranks: Of each trial; None: as `resources` says.
    """

    job_file: Path
    folder: Path | None = None
    settings: tuple[str, ...] = ()
    ranks: int | None = None


def begin_study(request: StudyRequest) -> tuple[StudyFolder, bool]:
    """Makes the folder of a study, or finds the one that was made of the same job file; and whether it is new.

    Checks all that can be without the model: the job, its study, its code and data.

    Raises:
        UserError: With all that is wrong; nothing was written.
    """
    job_file = request.job_file.absolute()
    document = overridden(read_yaml(job_file), request.settings)
    job = job_in(document)
    check_study(document, job)
    assert job.tune is not None, "checked"
    folder = StudyFolder(request.folder.absolute() if request.folder is not None else _folder_of(job.name))
    wants = resources_for(job.resources, load_tiers(os.environ, home_folder()))
    if wants.container is not None:
        raise UserError(
            "resources.container: a study's ranks run in no container: begin it in one, or without: "
            "--set resources.container=null"
        )
    if wants.requirements is not None:
        raise UserError(
            "resources.requirements: are installed for jobs of hpc-train submit alone: install them into the "
            "environment, and --set resources.requirements=null"
        )
    settings = StudySettings(
        name=job.name[:LONGEST_NAME],
        job_file=str(job_file),
        entry=job_file.name,
        settings=request.settings,
        ranks=request.ranks or wants.ranks,
        created=time.time(),
        version=__version__,
        job=described(job),
    )
    noun = settings.nouns.study
    if folder.is_one():
        _check_same(folder, settings, request)
        return folder, False
    if os.path.lexists(folder.path) and not (folder.path.is_dir() and not any(folder.path.iterdir())):
        raise UserError(f"{folder.path}: is there already, and is no {noun}; --{noun} names another folder")
    if not str(folder.path).isprintable():
        raise UserError(
            f"{visible(str(folder.path))}: no {noun} can be in a folder of this name; --{noun} names another"
        )
    sampler_of(job.tune)
    problems = Problems()
    named = {"": job, **dict(jobs_of_files(document, job))}
    for where, one in named.items():
        with problems.gathered(where):
            check_code(one, job_file.parent)
        with problems.gathered(where):
            check_ranks(one, settings.ranks)
        with problems.gathered(where):
            check_files(one, folder.path)
    with problems.gathered():
        always = [Path(job_file.name), *(path for one in named.values() for path in code_files(one))]
        data = [path for one in named.values() for path in data_files(one)]
        plan = plan_snapshot(job_file.parent, always=always, data=data)
        check_outside(job_file.parent, folder.path, plan.rules)
    problems.refuse()
    if not folder.create(settings, plan):
        _check_same(folder, settings, request)
        return folder, False
    return folder, True


def open_study(folder: StudyFolder) -> tuple[Study, StudySettings]:
    """The study in a folder, as far as it has come.

    Raises:
        UserError: There is none, or it cannot be read.
    """
    settings = folder.settings()
    return Study(folder, StudyJob.of(folder, settings)), settings


def _folder_of(name: str) -> Path:
    return Path(DEFAULT_ROOT, f"{name}{SUFFIX}").absolute()


def _check_same(folder: StudyFolder, settings: StudySettings, request: StudyRequest) -> None:
    before = folder.settings()
    if found := asked_otherwise(before, request, differences(before.job, settings.job)):
        raise UserError(
            f"{folder.path}: is a study of another job: {found}; to go on with it: hpc-train tune {folder.path}; "
            f"for more trials: hpc-train tune add-trials {folder.path} N; for a new one, --study names another folder"
        )


def asked_otherwise(before: StudySettings, request: StudyRequest, differing: list[str]) -> str:
    """What of a request is otherwise than in a study that was begun, in words; empty where nothing is. Pure.

    Args:
        differing: In which settings the two jobs differ.
    """
    found = list(differing)
    if before.job_file != str(request.job_file.absolute()):
        found.insert(0, f"the job file is {request.job_file.absolute()} (was {before.job_file})")
    if request.ranks is not None and request.ranks != before.ranks:
        found.append(f"--ranks {request.ranks} (was {before.ranks})")
    return "; ".join(found[:MOST_TOLD]) + (f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else "")
