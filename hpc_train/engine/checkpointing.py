"""Checkpoints of a running job: taken by all ranks together, written by the chief while training goes on."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpc_train.checkpoint.best import Best
from hpc_train.checkpoint.disk_io import idle
from hpc_train.checkpoint.format import NotFiniteError, Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.config.run_config import RunConfig
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from hpc_train.distributed.remote_parts import RemoteParts
from hpc_train.distributed.world import World
from hpc_train.engine.run_context import ChiefServices, Committed, RunContext
from hpc_train.errors import JobEndedError
from hpc_train.jobdir.paths import step_of
from hpc_train.model import rng_state
from hpc_train.outcome import EXIT_FAILED, EXIT_NOT_FINITE, EXIT_NOT_SAVED
from hpc_train.telemetry.disk_space import shortage
from hpc_train.telemetry.units import size

log = logging.getLogger(__name__)

WARNING_SECS_VARIABLE = "HPC_TRAIN_WARNING_SECS"
"""How long before it ends a job Slurm warns it; set by slurm/train.sh."""
LONG_WAIT_SECS = 1.0
"""Waiting so long for the checkpoint before is worth a line."""


class Saved(Protocol):
    """What is saved: see ModelState."""

    @property
    def layers(self) -> Sequence[Any]:
        """Variables that each rank has for itself."""

    @property
    def parts(self) -> RemoteParts | None:
        """What other ranks hold of it; None: the chief has all."""

    def average(self) -> None:
        """Makes alike on all ranks what should be. Collective."""

    def snapshot(self, about: Snapshot) -> Snapshot:
        """`about`, which has no arrays of variables yet, with all of them as they are now, for the chief."""


class Read(Protocol):
    """What is saved of the training data: see OpenInput."""

    @property
    def order(self) -> DataOrder | None:
        """The order in which it is read."""

    def progress_at(self, step: int) -> DataProgress:
        """How far it is read when `step` steps are done."""


class Checkpointing:
    """Takes and writes the checkpoints of one run.

    Args:
        world: The ranks that take them together. state: what is saved.

    Attributes:
        snapshot: The last one that this run has taken, in memory that the next one takes over; taken: when the newest
            was, in seconds since 1970. On the chief.
    """

    def __init__(self, context: RunContext, world: World, state: Saved) -> None:
        self._world, self._state, self._chief, self._ranks = world, state, context.chief, context.world.size
        self._copies = context.plan.roles.model
        self._config, self._manager, self._watchdog = context.config, context.manager, context.watchdog
        self._stalls: dict[int, float] = {}
        restored = self._chief.restored if self._chief else None
        self._best = best_before(self._manager, restored, self._config) if self._chief else None
        self._at_hand = context.plan.restored_step
        self.taken = restored.time if restored else 0.0
        self.snapshot: Snapshot | None = None

    def save(self, step: int, data: Read, stall_secs: float | None = None) -> bool:
        """Copies the state after `step`, which is then written while training goes on. Collective.

        Returns whether it did: it does not where that is what the newest checkpoint holds.

        Args:
            stall_secs: What training has waited; None: as long as this takes.

        Raises:
            JobEndedError: The checkpoint before could not be written, and `on_save_error` is "halt".
        """
        if step == self._at_hand:
            return False
        self._state.average()
        rng = rng_state.gather(self._world, self._state.layers, self._copies)
        start, parts, halt = time.monotonic(), self._state.parts, self._config.on_save_error == "halt"
        if parts is not None:  # nobody overwrites its own before the snapshot before is written
            self.wait(step, halt)
            self._world.each(parts.renew)  # the chief writes none of it before all have copied theirs

        def begin() -> None:
            if self._chief is not None:
                self._begin(self._chief, step, data, rng, start)
                self._stalls[step] = time.monotonic() - start if stall_secs is None else stall_secs

        self._world.each(begin)
        self._at_hand = step
        return True

    def _begin(self, chief: ChiefServices, step: int, data: Read, rng: dict[str, np.ndarray], start: float) -> None:
        if chief.lock.taken_by is not None:
            raise JobEndedError(
                f"another job has taken over this job-dir while this process stood still: {chief.lock.taken_by}; "
                "this one writes no more",
                EXIT_FAILED,
            )
        self._settle(chief, step, self._config.on_save_error == "halt")
        chief.listeners.before_save(step)
        if (waited := time.monotonic() - start) > LONG_WAIT_SECS:
            log.warning(f"waited {waited:.1f} s for the checkpoint before; save less often")
        best = asdict(self._best) if self._best else None
        progress, seed = data.progress_at(step), self._config.tf_random_seed
        about = Snapshot({}, {}, progress, data.order, self._ranks, 0.0, rng, seed, best, chief.settings)
        self.snapshot = self._state.snapshot(about)
        self.taken = self.snapshot.time
        chief.saver.begin(self.snapshot, self._state.parts.release if self._state.parts else idle)

    def wait(self, step: int, halt: bool = True) -> None:
        """Waits until what is being written is on the disk. Collective.

        Args:
            step: Where training is. halt: End the job where it could not be written; else that has been logged.

        Raises:
            JobEndedError: It could not be written, or holds NaN.
        """
        self._world.each(lambda: self._settle(self._chief, step, halt) if self._chief else None)

    def committed(self) -> list[tuple[int, dict[str, Any]]]:
        """The checkpoints that have been committed since the last call; saving listeners are called. Local.

        Each with its step, and what metrics.jsonl holds of it; stall_secs: what training waited, None where that is not
        known; committed: when that was, in seconds since 1970.
        """
        found = []
        while self._chief is not None and self._chief.committed:
            path, secs, nbytes, committed = self._chief.committed.popleft()
            step = step_of(path.name) or 0
            self._chief.listeners.after_save(step, path)
            stall_secs = self._stalls.pop(step, None)
            found.append((step, {"secs": secs, "bytes": nbytes, "stall_secs": stall_secs, "committed": committed}))
        return found

    def note_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Keeps the checkpoint of `step` from now on where its evaluation is the best so far. For the chief."""
        name, mode = self._config.best_metric, self._config.best_mode
        if self._chief is None or name is None or math.isnan(metrics.get(name, math.nan)):
            return
        if self._best is None or self._best.beaten_by(metrics[name]):
            self._best = Best(name, mode, metrics[name], step)
            self._chief.saver.note_best(self._best)

    def _settle(self, chief: ChiefServices, step: int, halt: bool) -> None:
        """Waits for what is being written, as long as that moves; an error ends the job or has been logged."""
        try:
            chief.saver.wait(lambda: self._watchdog.at("writing a checkpoint", step))
        except NotFiniteError as error:
            raise JobEndedError(
                f"the checkpoint was not committed: {error}. The one before it stays; start the job again to go on "
                "from there",
                EXIT_NOT_FINITE,
            ) from None
        except OSError as error:
            if halt:
                needed = self.snapshot.nbytes if self.snapshot is not None else None
                message = f"{not_saved(self._manager, error, needed)}; start the job again when that is mended"
                raise JobEndedError(message, EXIT_NOT_SAVED) from None

    def went_back_to(self, restored: Snapshot | None, step: int) -> None:
        """The state is that of the checkpoint of `step` again."""
        self._at_hand, self.taken = step, restored.time if restored else 0.0


def not_saved(manager: CheckpointManager, error: OSError, nbytes: int | None) -> str:
    """The message about a checkpoint that could not be written; `nbytes`: of its variables, where that is known."""
    steps = manager.steps()
    stays = f"the checkpoint of step {steps[-1]} stays" if steps else "there is none before it"
    folder = manager.path(0).parent
    lacks = shortage(error.errno, folder, nbytes)
    advice = "; make room, or keep fewer checkpoints (keep_checkpoint_max)" if lacks else ""
    what = f"{error.filename or folder}: {error.strerror or error} (errno {error.errno})"
    return f"a checkpoint could not be written: {what}{lacks}; {stays}{advice}"


def warning_secs() -> float | None:
    """How long before it ends the job the scheduler warns it, where that is known."""
    try:
        return float(os.environ[WARNING_SECS_VARIABLE])
    except (KeyError, ValueError):
        return None


def committed_by(committed: deque[Committed]) -> Callable[[Path, float, int], None]:
    """A function that logs each checkpoint that is committed, and adds it to `committed`.

    It warns once if saving takes longer than the scheduler's warning leaves.
    """
    lead, warned = warning_secs(), [False]

    def note(path: Path, secs: float, nbytes: int) -> None:
        committed.append((path, secs, nbytes, time.time()))
        log.info(f"checkpoint {path} ({size(nbytes)}, {secs:.2f} s)")
        if lead is not None and secs > lead and not warned[0]:
            warned[0] = True
            log.warning(
                f"a save takes {secs:.1f} s, but the job is warned only {lead:g} s before its end: that one "
                "would be lost. Ask for an earlier warning (sbatch --signal=B:USR1@SECS, HPC_TRAIN_WARNING_SECS=SECS)"
            )

    return note


def failed_by(manager: CheckpointManager) -> Callable[[BaseException, int], None]:
    """A function that logs at once that a checkpoint could not be written; the job ends at the next, or goes on."""

    def note(error: BaseException, nbytes: int) -> None:
        if isinstance(error, OSError):
            log.warning(not_saved(manager, error, nbytes))
        elif isinstance(error, NotFiniteError):
            log.warning(f"a checkpoint was not committed: {error}")

    return note


def best_before(manager: CheckpointManager, restored: Snapshot | None, config: RunConfig) -> Best | None:
    """The best evaluation of the runs before, by the metric that is asked for now."""
    best = manager.best()
    if best is None and restored is not None and restored.best is not None:
        best = Best(**restored.best)
        best = best if manager.path(best.step).is_dir() else None
    if best is not None and (best.metric, best.mode) != (config.best_metric, config.best_mode):
        manager.forget_best()
        return None
    return best
