"""The image of a job: where it is, and what runs it."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_train.config.container import Container, check_path
from hpc_train.errors import UserError
from hpc_train.jobs.containers.apptainer import Apptainer
from hpc_train.jobs.containers.base import Runtime
from hpc_train.jobs.containers.charliecloud import Charliecloud

RUNTIMES: tuple[Runtime, ...] = (Charliecloud(), Apptainer())


def runtime_of(container: Container) -> Runtime:
    """What runs the container's image, which is there.

    Raises:
        UserError: The image is not there, or none takes it.
    """
    image = Path(container.image)
    found: Runtime | None
    try:
        image.stat()
        if container.runtime != "auto":
            found = next(runtime for runtime in RUNTIMES if runtime.name == container.runtime)
        else:
            found = next((runtime for runtime in RUNTIMES if runtime.takes(image)), None)
        if found is not None:
            found.check(image)
            return found
    except FileNotFoundError:
        raise UserError(f"container: there is no image {image} here") from None
    except OSError as error:
        raise UserError(f"container: {image}: cannot be read: {error.strerror}") from None
    raise UserError(
        f"container: {image}: is no image that is known by its name; allowed: a folder (Charliecloud), a .sif file "
        "(Apptainer); or say which `runtime` it is for"
    )


def with_full_path(container: Container, folder: Path) -> Container:
    """The same with the image's absolute path, where it is relative to `folder`. Pure.

    Raises:
        UserError: No runtime can be told that path.
    """
    path = os.path.normpath(folder / container.image)
    try:
        return container.model_copy(update={"image": check_path(path)})
    except ValueError as error:
        raise UserError(f"container: {error}") from None
