"""What can happen in a run, and those who listen to it: log, hooks, rules, and whoever passes it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hpc_train.callbacks.hook_list import Hooks
from hpc_train.evaluation.runner import EvaluationResult


class RunListener:
    """Listens to one rank's run. Each method does nothing unless it is overridden; all are local."""

    def begin(self) -> None:
        """Training is about to begin."""

    def before_step(self, step: int) -> None:
        """Step `step` is about to be taken."""

    def after_step(self, step: int, loss: float) -> None:
        """Step `step` has been taken."""

    def after_checkpoint(self, step: int, path: Path) -> None:
        """The state after `step` has been copied, and is being written to `path`."""

    def evaluation(self, result: EvaluationResult, training_step: int, last: bool) -> None:
        """A checkpoint has been evaluated while training is at `training_step`; `last`: training is over."""

    def rollback(self, step: int) -> None:
        """Training has gone back to the checkpoint of `step`."""

    def interrupted(self, step: int) -> None:
        """A signal stops the run after `step`, whose checkpoint has been taken."""

    def end(self, step: int) -> None:
        """Training has ended for good after `step`; its checkpoint has not been taken yet."""


class RunEvents(RunListener):
    """Passes what happens on to listeners, in their order; of each only what it overrides, or has, is called."""

    def __init__(self, listeners: Sequence[RunListener | Hooks]) -> None:
        for name, idle in vars(RunListener).items():
            if not name.startswith("_"):
                overridden = [getattr(one, name) for one in listeners if getattr(type(one), name, idle) is not idle]
                setattr(self, name, partial(_call, overridden))


def _call(listening: Sequence[Callable[..., None]], *happened: object) -> None:
    for call in listening:
        call(*happened)


class EvaluationListener(RunListener):
    """Passes evaluations on to the hooks of this rank, which listen to all other events themselves."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def evaluation(self, result: EvaluationResult, training_step: int, last: bool) -> None:
        self._hooks.after_evaluate(result.step, result.name, result.metrics)
