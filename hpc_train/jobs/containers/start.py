"""The command before that of each rank, which runs it in the job's container; the first node has looked into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.config.container import Container, check_path
from hpc_train.errors import UserError
from hpc_train.jobs.containers.base import HOST_ONLY, Inside, Runtime, way_to
from hpc_train.jobs.containers.compatibility import mpirun_says, why_mpi_does_not_fit, why_no_package
from hpc_train.jobs.containers.contents import ImageLook, look_at_contents
from hpc_train.jobs.containers.image import runtime_of
from hpc_train.processes import home_folder
from hpc_train.telemetry.json_files import read_json

CONTAINER_VARIABLE = "HPC_TRAIN_CONTAINER"
"""The image, for slurm/train.sh, and in the environment of the ranks."""
ALWAYS_SEEN = ("/tmp", "/dev", "/proc", "/sys")
"""Folders of the node that each container has, under the same path."""
APART = {
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_smsc": "^cma",
    "UCX_TLS": "^cma",
}
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
        mpirun: What starts them, if it is one.
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
    mpirun: str | None = None


def contained_command(job: ContainedJob, env: Mapping[str, str], report: Callable[[str], None]) -> list[str]:
    """The words before those of each rank's command.

    Args:
        env: Of what starts the ranks.
        report: Told what the ranks run in, and what they do not see.

    Raises:
        UserError: With why they cannot run in it.
    """
    image, runtime = job.container.image, runtime_of(job.container)
    program, inside = runtime.program(), _inside(job, env)
    needed = _here([str(job.job_dir), str(job.folder), *job.needs])
    wanted = _here([*job.wants, *_settings_of_keras()])
    bound = [bind.partition(":")[2] or bind for bind in job.container.binds]
    for_needed, for_wanted = (_mountable([*paths, *map(os.path.realpath, paths)], bound) for paths in (needed, wanted))
    look = ImageLook(tuple(runtime.words(program, image, Inside(binds=inside.binds))), image)
    inside = runtime.fitted(inside, for_needed, for_wanted, look, env)
    words = runtime.words(program, image, inside)
    found = look_at_contents(words, image, str(job.folder), str(job.job_dir), [*needed, *wanted])
    if lost := [path for path in needed if path not in found.sees]:
        raise UserError(_not_seen(runtime, look, lost))
    if os.path.realpath(found.folder) != os.path.realpath(job.folder):
        raise UserError(f"container: {image}: begins in {found.folder} and not in {job.folder}; bind it (`binds`)")
    if not found.writes:
        raise UserError(f"container: {image}: the job-dir {job.job_dir} cannot be written in it; bind it (`binds`)")
    if job.code is not None and (why := why_no_package(found, job.code, str(job.version), image)) is not None:
        raise UserError(why)
    mpirun = "" if job.mpirun is None else mpirun_says(job.mpirun)
    if found.mpi is not None and (why := why_mpi_does_not_fit(mpirun, found.mpi, image)) is not None:
        raise UserError(why)
    if unseen := [path for path in wanted if path not in found.sees]:
        report(f"not seen in the container: {', '.join(unseen)}; where that is wanted, bind it (`binds`)")
    report(f"the ranks run in {image} ({runtime.name}; Python {found.python}, {found.mpi_name})")
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
        winning=("OMP_NUM_THREADS", *(name for name in job.environment if name not in (*HOST_ONLY, "PATH"))),
        unset=tuple(name for name in HOST_ONLY if name not in own),
        gpus=job.gpus,
    )


def _here(paths: Sequence[str]) -> list[str]:
    """Those that this node has."""
    return list(dict.fromkeys(os.path.normpath(path) for path in paths if Path(path).exists()))


def _mountable(paths: Sequence[str], bound: Sequence[str]) -> list[str]:
    """Those that are not seen anyhow, and that a runtime can be told."""
    found = []
    for path in dict.fromkeys(paths):
        if path != "/" and not any(Path(path).is_relative_to(folder) for folder in (*ALWAYS_SEEN, *bound)):
            try:
                found.append(check_path(path))
            except ValueError:  # it is not seen, which is told then
                continue
    return found


def _settings_of_keras() -> list[str]:
    """The user's file of them, where it has others than those that Keras writes into it by itself."""
    path = home_folder() / ".keras/keras.json"
    found = read_json(path)
    return [str(path)] if any(found.get(name, value) != value for name, value in KERAS_DEFAULTS.items()) else []


def _not_seen(runtime: Runtime, look: ImageLook, paths: Sequence[str]) -> str:
    way = way_to(paths[0])
    says = f"container: {look.image}: does not show the ranks {', '.join(paths)}"
    if runtime.makes_folders:
        return f"{says}: bind it (`binds: [{way[0]}]`)"
    missing = next((folder for folder, kind in zip(way, look.kinds(way), strict=True) if kind == "none"), None)
    if missing is None:
        return f"{says}, since it has folders of its own there: bind the node's over them (`binds: [{way[0]}]`)"
    return (
        f"{says}: make an empty folder {missing} in the image, on which the node's is mounted (docs/containers.md), or "
        f"bind the node's over one that it has (`binds: [{way[0]}]`)"
    )
