"""What can be known to go wrong with a job's container before it is queued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_train.config.program import MEMBER
from hpc_train.errors import UserError
from hpc_train.jobs.containers.base import Inside
from hpc_train.jobs.containers.contents import look_at_contents, look_at_folders, why_no_package
from hpc_train.jobs.containers.image import runtime_of, with_full_path
from hpc_train.jobs.record.installation import this_installation
from hpc_train.jobs.record.submission import Submission


def needs_package(submission: Submission) -> bool:
    """Whether the job's ranks run hpc_train, and not only a program of the user's. Pure."""
    return submission.kind == "model" or MEMBER in submission.args[:2]


def checked_container(submission: Submission, folder: Path) -> dict[str, Any] | None:
    """`resources.container` of a job with its image's full path, as a record has it; None: it has none.

    What is in the image is looked at where its runtime is on PATH: on a login node it may not be.

    Args:
        folder: That of the job file.

    Raises:
        UserError: With why the ranks could not run in it.
    """
    if submission.wants.container is None:
        return None
    container = with_full_path(submission.wants.container, folder)
    runtime = runtime_of(container)
    try:
        program = runtime.program()
    except UserError:
        if submission.backend == "local":
            raise
    else:
        image, inside = container.image, Inside(binds=container.binds)
        bare = runtime.words(program, image, inside)
        inside, _ = runtime.fitted(inside, [], lambda paths: look_at_folders(bare, image, paths))
        found = look_at_contents(runtime.words(program, image, inside), image, "/", "/", [])
        here = submission.installation or this_installation()
        if needs_package(submission) and (
            why := why_no_package(found, here.fingerprint, here.version, container.image)
        ):
            raise UserError(why)
    return container.model_dump(mode="json")
