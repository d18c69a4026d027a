"""The command before that of each rank, which runs it in the job's container; the first node has looked into it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.config.container import Container
from hpc_train.errors import UserError
from hpc_train.jobs.containers.base import HOST_ONLY, Inside
from hpc_train.jobs.containers.contents import (
    look_at_contents,
    look_at_folders,
    mpirun_says,
    why_mpi_does_not_fit,
    why_no_package,
)
from hpc_train.jobs.containers.image import runtime_of
from hpc_train.processes import home_folder
from hpc_train.telemetry.json_files import read_json

CONTAINER_VARIABLE = "HPC_TRAIN_CONTAINER"
"""The image, for slurm/train.sh, and in the environment of the ranks."""
ALWAYS_SEEN = ("/tmp", "/dev", "/proc", "/sys")
"""Folders of the node that each container has, under the same path."""
APART = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma"}
"""Has ranks of a node exchange through shared memory: each is in a user namespace of its own, and Linux lets none read
the memory of another's."""
KERAS_DEFAULTS = {
    "floatx": "float32",
    "epsilon": 1e-07,
    "backend": "tensorflow",
    "image_data_format": "channels_last",
}


@dataclass(frozen=True)
class ContainedJob:
    """A job whose ranks run in a container.

    Attributes:
        folder: Where its ranks begin.
        needs: Paths that they have to see, beside `folder` and the job-dir.
        wants: Paths that they may want to see: a line says where they do not.
        code, version: Of the hpc_train that the image has to have; None: any, or none.
        environment: Variables that the job itself sets.
        gpus: Whether it has asked for some.
        by_mpirun: Whether mpirun of this node starts them.
    """

    container: Container
    job_dir: Path
    folder: Path
    needs: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    code: str | None = None
    version: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: bool = False
    by_mpirun: bool = True


def contained_command(job: ContainedJob, env: Mapping[str, str], report: Callable[[str], None]) -> list[str]:
    """The words before those of each rank's command.

    Args:
        env: Of what starts the ranks.
        report: Told what the ranks run in, and what they do not see.

    Raises:
        UserError: With why they cannot run in it.
    """
    image = job.container.image
    runtime = runtime_of(job.container)
    program = runtime.program()
    inside = _inside(job, env)
    needed = _here([str(job.job_dir), str(job.folder), *job.needs])
    wanted = _here([*job.wants, *_settings_of_keras()])
    bound = [bind.partition(":")[2] or bind for bind in job.container.binds]
    asked = [path for path in dict.fromkeys([*needed, *wanted]) if not _is_within(path, [*ALWAYS_SEEN, *bound])]
    alone = runtime.words(program, image, Inside(binds=inside.binds))
    inside, missing = runtime.fitted(inside, asked, lambda paths: look_at_folders(alone, image, paths))
    words = runtime.words(program, image, inside)
    if lost := [path for path in missing if path in needed]:
        raise UserError(_not_seen(image, lost))
    found = look_at_contents(words, image, str(job.folder), str(job.job_dir), [*needed, *wanted])
    if lost := [path for path in needed if path not in found.sees]:
        raise UserError(_not_seen(image, lost))
    if os.path.realpath(found.folder) != os.path.realpath(job.folder):
        raise UserError(f"container: {image}: begins in {found.folder} and not in {job.folder}; bind it (`binds`)")
    if not found.writes:
        raise UserError(f"container: {image}: the job-dir {job.job_dir} cannot be written in it; bind it (`binds`)")
    if job.code is not None and (why := why_no_package(found, job.code, str(job.version), image)) is not None:
        raise UserError(why)
    mpirun = mpirun_says(shutil.which("mpirun")) if job.by_mpirun and found.mpi is not None else ""
    if found.mpi is not None and (why := why_mpi_does_not_fit(mpirun, found.mpi, image)) is not None:
        raise UserError(why)
    if unseen := [path for path in wanted if path not in found.sees]:
        report(f"not seen in the container: {', '.join(unseen)}; where that is wanted, bind it (`binds`)")
    mpi = "" if found.mpi is None else f", {found.mpi.partition(',')[0].strip()}"
    report(f"the ranks run in {image} ({runtime.name}; Python {found.python}{mpi})")
    return words


def _inside(job: ContainedJob, env: Mapping[str, str]) -> Inside:
    own = {name: value for name, value in job.environment.items() if name in HOST_ONLY}
    return Inside(
        folder=str(job.folder),
        binds=job.container.binds,
        variables={
            **{name: value for name, value in APART.items() if name not in env},
            "PYTHONNOUSERSITE": "1",  # what a user has installed for the node's Python
            CONTAINER_VARIABLE: job.container.image,
            **own,
        },
        unset=tuple(name for name in HOST_ONLY if name not in own),
        gpus=job.gpus,
    )


def _here(paths: Sequence[str]) -> list[str]:
    """Those that this node has, and what they lead to."""
    there = [path for path in paths if os.path.lexists(path)]
    return list(dict.fromkeys(found for path in there for found in (os.path.normpath(path), os.path.realpath(path))))


def _settings_of_keras() -> list[str]:
    """The user's file of them, where it has others than those that Keras writes into it by itself."""
    path = home_folder() / ".keras/keras.json"
    found = read_json(path)
    return [str(path)] if any(found.get(name, value) != value for name, value in KERAS_DEFAULTS.items()) else []


def _is_within(path: str, folders: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _not_seen(image: str, paths: Sequence[str]) -> str:
    top = "/".join(paths[0].split("/")[:2])
    return (
        f"container: {image}: cannot show the ranks {', '.join(paths)}: the image needs an empty folder on the way, "
        f"such as {top}, on which the node's is mounted (docs/containers.md)"
    )
