"""Synchronous training: all ranks take each step together."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_train.checkpoint.durable import Moved
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.errors import EXIT_NOT_FINITE, JobEndedError
from hpc_train.estimator.feed import Feed
from hpc_train.estimator.health import Health
from hpc_train.estimator.loop import train
from hpc_train.estimator.run import Result
from hpc_train.estimator.session import Session
from hpc_train.estimator.setup import find_checkpoint, set_aside
from hpc_train.estimator.train_step import Flags, StepReport, TrainStep, make_train_step
from hpc_train.strategies.base import Strategy

if TYPE_CHECKING:
    import keras


class SyncTraining:
    """Trains with gradients that `strategy` averages."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def learning_rate(self, model: keras.Model) -> Callable[[], float]:
        """A function that tells the learning rate of the next step."""
        return lambda: float(model.optimizer.learning_rate)

    def run(self, session: Session) -> Result:
        """Trains to the end, evaluates and exports. Collective."""
        s, world, config = session, session.world, session.config
        saving = s.saving(world, s.state)
        data = s.data
        run = s.run(world, saving, data)
        health = Health(config.on_nan)
        train_step = make_train_step(s.model, self._strategy, s.state.carried, undo=config.on_nan != "halt")
        if s.delay_secs:
            train_step = _delayed(train_step, s.delay_secs)
        if config.on_nan == "rollback" and s.found is None:
            saving.save(0, data)
        first_step = s.first_step
        while True:
            with Feed(data.dataset, lambda data=data: data.failure) as batches:  # type: ignore[misc]
                outcome = train(
                    world,
                    config,
                    batches,
                    train_step,
                    first_step,
                    s.train_spec.max_steps,
                    run,
                    s.signals,
                    health,
                    s.watchdog,
                    s.reporting,
                )
            if outcome.end == "signal":
                run.stop(outcome.step)
            if outcome.end != "rollback":
                return run.finish(outcome)
            going_back = partial(s.watchdog.at, "going back to the last checkpoint", outcome.step)
            going_back()
            saving.wait(outcome.step, halt=False)
            first_step = world.on_chief(partial(_last_whole, s.job_dir, s.manager, s.notes.say, going_back))
            if s.reporting:
                s.reporting.metrics.start(first_step, ranks=world.size)
                s.reporting.progress.say(f"back at the checkpoint of step {first_step}")
            saving.went_back_to(s.restore(first_step), first_step)
            run.data = data = s.open_data(first_step)[0]


def _delayed(step: TrainStep, secs: float) -> TrainStep:
    def run(batch: Any, flags: Flags) -> StepReport:
        time.sleep(secs)
        return step(batch, flags)

    return run


def _last_whole(job_dir: Path, manager: CheckpointManager, say: Callable[[str], None], moved: Moved) -> int:
    """The step of the newest whole checkpoint; damaged ones above it are set aside."""
    found = find_checkpoint(job_dir, manager, moved)
    if found.step is None:
        raise JobEndedError("there is no checkpoint to go back to (on_nan: rollback); training ends", EXIT_NOT_FINITE)
    for line in set_aside(manager, found):
        say(line)
    return found.step
