"""Hook and SavingListener: what a user can have called beside the steps and the checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_train.arguments import checked_arguments
from hpc_train.lazy import keras


@checked_arguments
@dataclass(frozen=True)
class HookContext:
    """What a hook knows of the job, seen from its rank.

    Attributes:
        model: The model in training; its weights are those of the checkpoint that the job goes on from.
        rank, size: Of the job's ranks.
        is_chief: Whether this is the one that hooks with `chief_only` run on: the first that trains; for hooks of an
            EvalSpec rank 0, which always evaluates.
        job_dir: As an absolute path.
        first_step: Steps that are done when training begins.
        max_steps: None: until the input ends.
        request_stop: Asks, with a reason, for the end of training on all ranks. One rank is enough; training ends
            after the next step that is taken.
    """

    model: keras.Model
    rank: int
    size: int
    is_chief: bool
    job_dir: Path
    first_step: int
    max_steps: int | None
    request_stop: Callable[[str], None] = lambda reason: None


class Hook:
    """Base of hooks; each method does nothing. Called on every rank, or on the chief with `chief_only = True`.

    Steps are global steps, counted from 1. A method that communicates between ranks must be called on all of them. An
    exception ends the job.

    Attributes:
        chief_only: Call it on the chief alone.
        needs_state: Whether before_step and after_step read or change the model, its optimizer or other variables. With
            False, they are called in the same order with the same steps, but the next step may run meanwhile
            (`run.steps_in_flight`); all other methods find the state as it is after their step in any case.
    """

    chief_only: bool = False
    needs_state: bool = True

    def begin(self, context: HookContext) -> None:
        """Before the first step of this run."""

    def before_step(self, step: int) -> None:
        """Step `step` is about to be taken."""

    def after_step(self, step: int, loss: float) -> None:
        """Step `step` is done; `loss` is the mean over the ranks, before the step's update."""

    def after_checkpoint(self, step: int, path: Path) -> None:
        """The state after `step` has been taken; it is being written to `path`."""

    def before_evaluate(self, step: int, name: str | None) -> None:
        """An evaluation of the set called `name` begins."""

    def before_evaluation_batch(self, name: str | None, batch: int) -> None:
        """Batch number `batch` (from 0, of this rank's) of the set called `name` is about to be evaluated."""

    def after_evaluation_batch(self, name: str | None, batch: int) -> None:
        """Batch number `batch` has been evaluated."""

    def after_evaluate(self, step: int, name: str | None, metrics: Mapping[str, float]) -> None:
        """The set called `name` (None: the one without a name) has been evaluated at `step`."""

    def end(self, step: int) -> None:
        """Training has ended after `step`: what is done to the model here is saved, evaluated and exported."""

    def interrupted(self, step: int) -> None:
        """A signal stops this run after `step`, which is saved; another run goes on from there. Calls `end`."""
        self.end(step)


class SavingListener:
    """Base of listeners to checkpoints, on the rank that writes them (as tf.estimator.CheckpointSaverListener)."""

    def before_save(self, step: int) -> None:
        """The checkpoint of `step` is about to be taken."""

    def after_save(self, step: int, path: Path) -> None:
        """The checkpoint of `step` is whole at `path`."""


METHODS = tuple(
    name for name in vars(Hook) if name not in ("chief_only", "needs_state", "interrupted") and not name.startswith("_")
)
LISTENER_METHODS = ("before_save", "after_save")
