"""Synchronous training: all ranks take each step together."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hpc_train.data.loading.feed import Feed
from hpc_train.data.loading.tf_dataset import OpenInput
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.world import World
from hpc_train.engine.lifecycle import Result, Run
from hpc_train.engine.loop import Events, Outcome, train
from hpc_train.engine.nan_policy import Health
from hpc_train.engine.recovery import last_whole
from hpc_train.engine.run_context import Session
from hpc_train.engine.train_step import Flags, StepReport, TrainStep, make_train_step
from hpc_train.telemetry.reporter import Teller


class SyncTraining:
    """All ranks train, with gradients that `allreduce` averages, save and evaluate together."""

    def __init__(self, allreduce: GradientAllreduce) -> None:
        self._allreduce = allreduce

    def run(self, session: Session) -> Result:
        """Trains to the end, evaluates and exports. Collective."""
        s, world = session, session.world
        saving = s.saving(world, s.state)
        run = Run(s, world, saving, s.data)

        def go_back(step: int) -> tuple[int, OpenInput]:
            going_back = partial(s.watchdog.at, "going back to the last checkpoint", step)
            going_back()
            saving.wait(step, halt=False)
            first_step = world.on_chief(partial(last_whole, s, going_back))
            saving.went_back_to(s.restore(world, first_step), first_step)
            data = s.open_data(world, first_step)[0]
            run.went_back(first_step, data)
            return first_step, data

        if s.config.on_nan == "rollback" and s.found is None:
            saving.save(0, s.data)
        s.hooks.begin()
        run.catch_up()
        outcome = train_through(s, world, self._allreduce, run, s.reporting, go_back)
        if outcome.end == "signal":
            run.stop(outcome.step)
        return run.finish(outcome)


def train_through(
    s: Session,
    world: World,
    allreduce: GradientAllreduce,
    events: Events,
    teller: Teller | None,
    go_back: Callable[[int], tuple[int, OpenInput]],
) -> Outcome:
    """Trains until the end, going back where the numbers have to. Collective over `world`, the ranks that train.

    Args:
        go_back: Takes all of them back to the last checkpoint; returns its step, and the data opened there.
    """
    config, data = s.config, s.data
    health = Health(config.on_nan)
    step = make_train_step(
        s.model, allreduce, s.state.carried, undo=config.on_nan != "halt", accumulate_steps=config.accumulate_steps
    )
    if s.delay_secs:
        step = _delayed(step, s.delay_secs)
    first_step = s.first_step
    while True:
        with Feed(data.dataset, lambda data=data: data.failure) as batches:  # type: ignore[misc]
            outcome = train(
                world,
                config,
                batches,
                step,
                first_step,
                s.max_steps,
                events,
                s.signals,
                health,
                s.watchdog,
                teller,
                lambda: float(s.model.optimizer.learning_rate),
            )
        if outcome.end != "rollback":
            return outcome
        first_step, data = go_back(outcome.step)


def _delayed(step: TrainStep, secs: float) -> TrainStep:
    def run(batch: Any, flags: Flags) -> StepReport:
        time.sleep(secs)
        return step(batch, flags)

    return run
