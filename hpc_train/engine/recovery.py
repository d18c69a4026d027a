"""The checkpoint that a job goes on from: the newest whole one, found; damaged ones set aside."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_train.checkpoint.disk_io import Moved, idle
from hpc_train.checkpoint.manager import CheckpointManager, Found
from hpc_train.checkpoint.manifest import FormatError
from hpc_train.engine.run_context import Session
from hpc_train.errors import JobEndedError, UserError
from hpc_train.outcome import EXIT_NOT_FINITE


def find_checkpoint(job_dir: Path, manager: CheckpointManager, moved: Moved = idle) -> Found:
    """The newest whole checkpoint and the damaged ones above it.

    Raises:
        UserError: `job_dir` cannot be written, or there are checkpoints and none can be read, or is whole.
    """
    parent = job_dir
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise UserError(f"{job_dir}: cannot be the job-dir, because {parent} is not a folder")
    if not os.access(parent, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f"{job_dir}: the job-dir cannot be written ({parent} is read-only, or belongs to others)")
    try:
        found = manager.find_whole(moved)
    except FormatError as error:
        raise UserError(f"{error}; use the version that wrote it, or another job-dir") from None
    except OSError as error:
        raise UserError(
            f"a checkpoint cannot be read: {error.filename}: {error.strerror} (errno {error.errno}); nothing has been "
            "changed: start again once it can be read"
        ) from None
    if found.step is None and found.damaged:
        raise UserError(
            "\n".join(
                [
                    f"{job_dir}: no checkpoint is whole; bring one back from a copy, or move them away to begin anew:",
                    *(f"  step {step}: {why}" for step, why in found.damaged),
                ]
            )
        )
    return found


def set_aside(manager: CheckpointManager, found: Found) -> list[str]:
    """Renames the damaged checkpoints that were found, and returns what to tell of them. For the chief."""
    return [
        f"warning: the checkpoint of step {step} is damaged and was set aside as {manager.put_aside(step)}: {why}"
        for step, why in found.damaged
    ]


def last_whole(s: Session, moved: Moved) -> int:
    """The step of the newest whole checkpoint, from which training goes on; damaged ones above it are set aside.

    For the chief.
    """
    found = find_checkpoint(s.job_dir, s.manager, moved)
    if found.step is None:
        raise JobEndedError("there is no checkpoint to go back to (on_nan: rollback); training ends", EXIT_NOT_FINITE)
    for line in set_aside(s.manager, found):
        s.notes.say(line)
    if s.reporting:
        s.reporting.metrics.start(found.step, ranks=s.world.size, max_steps=s.max_steps, reason="on_nan: rollback")
        s.reporting.say(f"back at the checkpoint of step {found.step}")
    return found.step
