"""Steps in flight: how many are dispatched before the first of them is read, where none may be, and who runs them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from hpc_train.config.run_config import MOST_IN_FLIGHT, RunConfig
from hpc_train.distributed.world import World
from hpc_train.engine.run_context import RunContext
from hpc_train.lazy import tf

log = logging.getLogger(__name__)


def depth_of(context: RunContext, world: World, trains: bool = True) -> int:
    """How many steps may be in flight beside the one that is waited for, the same on all ranks. Collective.

    0 where something on any rank has to come between two steps.

    Args:
        trains: Whether this rank makes steps; one that makes none has no say.
    """
    asked = context.config.steps_in_flight
    wanted = MOST_IN_FLIGHT
    if trains:
        wanted = (1 if tf.config.list_logical_devices("GPU") else 0) if asked is None else asked
    why = _what_comes_between(context) if trains and wanted else None
    reason = world.first(why)
    if reason is not None and world.is_chief:
        log.info(f"no step is in flight beside another one (run.steps_in_flight): {reason}")
    return world.lowest(0 if reason is not None else wanted)


def _what_comes_between(context: RunContext) -> str | None:
    """Why each step of this rank has to be over before the next one is dispatched; None: it need not. Local."""
    if context.model.run_eagerly:
        return "the model was compiled with run_eagerly"
    if context.job.step_delay_secs:
        return "a rank's steps are delayed (--debug-delay)"
    if context.config.strategy == "async" and (why := keeps_gradients_apart(context.config)) is not None:
        return why
    if (name := context.hooks.needing_state) is not None:
        return (
            f"{name} is called between steps, and may read or change the model; give a hook that does not "
            "`needs_state = False`"
        )
    return None


def keeps_gradients_apart(config: RunConfig) -> str | None:
    """Why an asynchronous worker has to push a gradient before it computes the next one; None: it need not. Pure."""
    if config.max_staleness == 0:
        return "no gradient may be stale (run.max_staleness: 0)"
    if config.prefetch_parameters:
        return "parameters are fetched beside each step (run.prefetch_parameters)"
    if config.profile_steps is not None:
        return "the profile is to hold whole steps (run.profile_steps)"
    return None


def drains_after(config: RunConfig) -> Callable[[int], bool]:
    """Whether all steps have to be over after a step, since what comes then needs the model's state. Pure."""
    every = [
        steps
        for steps in (
            config.save_summary_steps,
            config.save_checkpoints_steps,
            config.check_replicas_steps,
            config.save_histograms_steps,
        )
        if steps
    ]
    first, last = config.profile_steps or (1, -1)

    def drains(step: int) -> bool:
        return any(step % steps == 0 for steps in every) or first - 1 <= step <= last

    return drains


class Stream:
    """Runs steps in order, beside the thread that dispatches them. Local.

    Args:
        depth: 0: what is dispatched is run at once, by the caller.
    """

    def __init__(self, depth: int) -> None:
        self._executor = None
        if depth:
            from tensorflow.python.eager import executor

            self._executor = executor.new_executor(enable_async=True)

    def dispatching(self) -> AbstractContextManager[object]:
        """A context in which TensorFlow queues functions instead of running them; reading a result waits for it."""
        if self._executor is None:
            return nullcontext()
        from tensorflow.python.eager import context

        scope: AbstractContextManager[object] = context.executor_scope(self._executor)
        return scope
