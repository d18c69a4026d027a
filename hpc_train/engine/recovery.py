"""The checkpoint that a job goes on from: the newest whole one found, damaged ones set aside, its state restored."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_train.checkpoint.disk_io import Moved, idle
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager, Found
from hpc_train.checkpoint.manifest import FormatError
from hpc_train.config.settings import Settings, changes
from hpc_train.distributed.world import World
from hpc_train.errors import JobEndedError, UserError
from hpc_train.model import rng_state
from hpc_train.model.layer_states import reset
from hpc_train.model.model_state import ModelState
from hpc_train.outcome import EXIT_NOT_FINITE
from hpc_train.telemetry.metrics import MetricsWriter
from hpc_train.text import NAMED, listed

if TYPE_CHECKING:
    from hpc_train.engine.run_context import ChiefServices, RunContext

log = logging.getLogger(__name__)

MAX_LOGGED, MAX_RECORDED = 20, 1000


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
                    *(f"  step {step}: {why}" for step, why in found.damaged[:NAMED]),
                    *([f"  and {more:,} more"] if (more := len(found.damaged) - NAMED) > 0 else []),
                ]
            )
        )
    return found


def set_aside(manager: CheckpointManager, found: Found) -> None:
    """Renames the damaged checkpoints that were found, and logs it. For the chief."""
    folders = [manager.put_aside(step) for step, _ in found.damaged]
    if len(folders) > NAMED:
        whys = listed((f"step {step}: {why}" for step, why in found.damaged), "; ", NAMED)
        log.warning(f"{len(folders):,} checkpoints are damaged and were set aside in {folders[0].parent}: {whys}")
        return
    for folder, (step, why) in zip(folders, found.damaged, strict=True):
        log.warning(f"the checkpoint of step {step} is damaged and was set aside as {folder}: {why}")


def last_whole(context: RunContext, chief: ChiefServices, moved: Moved) -> int:
    """The step of the newest whole checkpoint, from which training goes on; damaged ones above it are set aside.

    For the chief.

    Raises:
        JobEndedError: There is none.
    """
    found = find_checkpoint(context.job.job_dir, context.manager, moved)
    if found.step is None:
        raise JobEndedError("there is no checkpoint to go back to (on_nan: rollback); training ends", EXIT_NOT_FINITE)
    set_aside(context.manager, found)
    metrics, ranks = chief.reporter.metrics, context.world.size
    metrics.start(found.step, ranks=ranks, max_steps=context.plan.max_steps, reason="on_nan: rollback")
    log.info(f"back at the checkpoint of step {found.step}")
    note_changes(metrics, found.step, context.manager.settings(found.step), chief.settings)
    return found.step


def note_changes(
    metrics: MetricsWriter, step: int, before: Settings | None, now: Settings, is_over: bool = False
) -> None:
    """Logs and records what is asked for otherwise `now` than in the run that made the checkpoint of `step`.

    MAX_RECORDED changes are recorded at most.

    Args:
        before: Of that run; None: not known. is_over: No further step will be made.
    """
    changed = changes(before, now, is_over) if before is not None else []
    for change in changed[:MAX_RECORDED]:
        metrics.note("change", step, **asdict(change))
    followed = [f"{c.key}: {c.before} -> {c.now}" for c in changed if not c.ignored]
    more = [f"and {len(followed) - MAX_LOGGED} more, see the report"] if len(followed) > MAX_LOGGED else []
    for line in [*followed[:MAX_LOGGED], *more]:
        log.info(f"changed at step {step}: {line}")
    for why in dict.fromkeys(c.ignored for c in changed if c.ignored):
        keys = [c.key for c in changed if c.ignored == why]
        more = [f"and {len(keys) - MAX_LOGGED} more"] if len(keys) > MAX_LOGGED else []
        log.warning(f"changed without effect: {', '.join([*keys[:MAX_LOGGED], *more])}: {why}")


class Restorer:
    """Gives ranks the state of a checkpoint.

    Args:
        part: The part of the data that this rank reads, among `readers`.
        settings: What this run is asked for.
    """

    def __init__(
        self, manager: CheckpointManager, state: ModelState, part: int, readers: int, settings: Settings
    ) -> None:
        self._manager, self._state, self._part, self._readers = manager, state, part, readers
        self._settings = settings

    def restore(self, ranks: World, step: int | None) -> Snapshot | None:
        """Gives all of `ranks` the state of the checkpoint of `step`; None: the chief's own, as it is. Collective.

        Returns the checkpoint, on the chief, without its arrays.
        """
        snapshot = ranks.each(lambda: self._load(step) if ranks.is_chief else None)
        left: dict[str, str] = {}
        if step is not None and self._state.divided:
            left = self._state.by_name(ranks.broadcast(self._state.left(snapshot) if snapshot else []))
            ranks.each(lambda: self._load_left(step, left))
        self._state.share(snapshot, self._part, left)
        if step is None:
            self._state.check_parts()
        states, layers = snapshot.rng if snapshot else None, self._state.layers
        if not rng_state.restore(ranks, states, self._part, self._readers, layers) and layers:
            reset(layers)
            if snapshot is not None:
                log.warning(
                    "states of stateful layers begin at zero: the checkpoint has none for each of so many ranks"
                )
        return replace(snapshot, model={}, optimizer={}, rng={}) if snapshot else None

    def _load(self, step: int | None) -> Snapshot | None:
        if step is None:
            return None
        loaded = self._manager.load(step, self._state.divided)
        return self._state.fit(loaded, str(self._manager.path(step)), self._settings)

    def _load_left(self, step: int, left: dict[str, str]) -> None:
        """What the chief has left in the checkpoint, since ranks hold parts of it: each reads its own."""
        wanted = {name: (dataset, self._state.divided.get(name)) for name, dataset in left.items()}
        self._manager.load_parts(step, wanted, self._state.assign_part)
