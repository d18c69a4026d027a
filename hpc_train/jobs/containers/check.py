"""What can be known to go wrong with a job's container before it is queued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_train.config.program import MEMBER
from hpc_train.errors import UserError
from hpc_train.jobs.containers.base import Inside
from hpc_train.jobs.containers.compatibility import why_no_package
from hpc_train.jobs.containers.contents import ImageLook, look_at_contents
from hpc_train.jobs.containers.image import runtime_of, with_full_path
from hpc_train.jobs.record.installation import this_installation
from hpc_train.jobs.record.submission import Submission


def needs_package(submission: Submission) -> bool:
    """Whether the job's ranks run hpc_train, and not only a program of the user's. Pure."""
    return submission.kind == "model" or MEMBER in submission.args[:2]


def checked_container(submission: Submission, folder: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """`resources.container` of a job with its image's full path, as a record has it; None: it has none.

    What is in the image is looked at where its runtime is on PATH: on a login node it may not be.

    Args:
        folder: That of the job file. report: told where the image cannot be run here.

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
        image = container.image
        inside = Inside(binds=tuple(bind for bind in container.binds if Path(bind.partition(":")[0]).exists()))
        look = ImageLook(tuple(runtime.words(program, image, inside)), image)
        try:
            inside = runtime.fitted(inside, [], [], look, {})
            look.kinds(["/"])
        except UserError as error:  # where jobs are submitted it may not run, as on another kind of machine
            report(f"{error}: looked into by the job's first node alone")
            return container.model_dump(mode="json")
        found = look_at_contents(runtime.words(program, image, inside), image, "/", "/", [])
        here = submission.installation or this_installation()
        if needs_package(submission) and (
            why := why_no_package(found, here.fingerprint, here.version, container.image)
        ):
            raise UserError(why)
    return container.model_dump(mode="json")
