"""What a job needs of its container: from its submission, or from the arguments of `hpc-train train`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from hpc_train.config.container import Container
from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig, load_any
from hpc_train.config.references import names_of
from hpc_train.data.hdf5.shards import matches
from hpc_train.errors import UserError
from hpc_train.jobdir.paths import CODE
from hpc_train.jobs.containers.check import needs_package
from hpc_train.jobs.containers.image import with_full_path
from hpc_train.jobs.containers.start import ContainedJob
from hpc_train.jobs.record.installation import this_installation
from hpc_train.jobs.record.submission import Submission

_WILD = re.compile(r"[*?\[{]")


def of_submission(submission: Submission, job_dir: Path) -> ContainedJob:
    """What a submitted job needs.

    Raises:
        UserError: The job file cannot be read, or the job has no container.
    """
    wants = submission.wants
    if wants.container is None:
        raise UserError(f"{job_dir}: the job has no container (resources.container)")
    data_root, code = Path(submission.job_file).parent, job_dir / CODE
    job = load_any(code / submission.entry, submission.settings, data_root)
    found = submission.installation or this_installation()
    return ContainedJob(
        container=wants.container,
        job_dir=job_dir,
        folder=code,
        needs=tuple(paths_of(job, data_root)),
        wants=tuple(paths_in(submission.args)),
        code=found.fingerprint if needs_package(submission) else None,
        version=found.version,
        environment=wants.environment,
        gpus=any(one.gpus_per_node for one in wants.components),
        mpirun=_mpirun() if wants.launcher == "mpirun" and (submission.kind == "model" or wants.ranks > 1) else None,
    )


def of_training(
    container: Container,
    job_file: Path,
    job_dir: Path,
    settings: Sequence[str],
    by_mpirun: bool,
    data_root: Path | None = None,
) -> ContainedJob:
    """What `hpc-train train` with these arguments needs, in this folder and with this environment.

    Raises:
        UserError: The job file cannot be read.
    """
    here, found = Path.cwd(), this_installation()
    job = load_any(job_file, settings, data_root)
    there = next(folder for folder in (job_dir.absolute(), *job_dir.absolute().parents) if folder.is_dir())
    return ContainedJob(
        container=container,
        job_dir=there,
        folder=here,
        needs=(str(job_file.absolute().parent), *paths_of(job, data_root or job_file.absolute().parent)),
        code=found.fingerprint,
        version=found.version,
        gpus=any(name.startswith(("SLURM_GPUS", "SLURM_JOB_GPUS")) for name in os.environ),
        mpirun=_mpirun() if by_mpirun else None,
    )


def _mpirun() -> str | None:
    """The one that slurm/ranks.sh takes."""
    return shutil.which("mpirun")


def paths_of(job: JobConfig | ProgramConfig, folder: Path) -> list[str]:
    """The folders of a job's shards, assets and sources, named relative to `folder`, and what links lead to."""
    if isinstance(job, ProgramConfig):
        return []
    found = []
    for _, kind, name in names_of(job):
        if kind in ("shard", "asset", "source"):
            path = folder / name
            wild = next((place for place, part in enumerate(path.parts) if _WILD.search(part)), len(path.parts) - 1)
            found.append(os.path.normpath(Path(*path.parts[:wild])))
            linked = matches(str(path)) if kind == "shard" else [path]
            found += [str(one.resolve().parent) for one in linked if one.is_symlink()]
    return list(dict.fromkeys(found))


def paths_in(words: Sequence[str]) -> list[str]:
    """What looks like an absolute path among a program's arguments: /a/b, or --data=/a/b. Pure."""
    texts = (word.partition("=")[2] if word.startswith("-") else word for word in words)
    return [text for text in texts if text.startswith("/") and "\0" not in text and len(text) < 4096]


def container_from(env_text: str) -> Container:
    """The container of slurm/train.sh: an image, then folders to bind, with commas between them.

    Raises:
        UserError: It is none.
    """
    image, *binds = env_text.split(",")
    try:
        container = Container(image=image, binds=tuple(binds))
    except ValueError as error:
        told = str(error).partition("Value error, ")[2].partition(" [type=")[0]
        raise UserError(f"HPC_TRAIN_CONTAINER: {told or error}") from None
    return with_full_path(container, Path.cwd())
