"""A hook of this package's job that measures the job, alone or in turn with a rival in the same process.

The job runs as it always does; what a rival takes of its time is left out. Ours and the rival share process, threads,
Horovod, MPI and their settings, and are a fraction of a second apart: so small differences can be seen.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.timing import there_and_back

from hpc_train.callbacks.hook import Hook, HookContext
from hpc_train.distributed.startup import join_world
from peers.measurement import LAST_LOSSES, Measurement, Took, write_measurements
from peers.models import build_model, load_batches
from peers.settings import BATCH, FIT, SAME_FLAGS

if TYPE_CHECKING:
    from peers.rivals import KerasFit, Loop

PLAN, TOLD = "measure.json", "ours.json"
"""In the working directory: the Plan; and what the chief writes: what ours reached, then the rival."""
GAUGE_STEPS = 8
MIN_STEPS, MAX_STEPS = 3, 5_000
WARM_SHARE = 10
"""One step of so many is not counted after a change: the other has filled the caches with its own."""


@dataclass(frozen=True)
class Plan:
    """What is measured in a job.

    Attributes:
        model: Of models.py. rival: SAME_FLAGS, FIT, or None: ours alone.
        pairs: Blocks of each. block_secs: how long one of ours is to take, about.
        first_steps, first_secs: That ours trains before anything counts, whichever takes longer.
    """

    model: str
    rival: str | None
    pairs: int
    block_secs: float
    first_steps: int
    first_secs: float


class MeasuringHook(Hook):
    """Measures blocks of steps, as many of the rival's as of ours, then ends the job."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ours: list[Took] = []
        self._theirs: list[Took] = []
        self._first_loss: float | None = None
        self._last_losses: deque[float] = deque(maxlen=LAST_LOSSES)

    def begin(self, context: HookContext) -> None:
        """Makes the rival, and has it make its first steps."""
        self._context = context
        self._rival = make_rival(self._plan.rival, self._plan.model, context)
        if self._rival is not None:
            self._rival.run(0, self._plan.first_steps)
        agree: Callable[[int], int] = join_world().broadcast
        self._script = self._measure(agree)
        self._left = next(self._script)

    def after_step(self, step: int, loss: float) -> None:
        """Counts steps until the time is to be taken."""
        if self._first_loss is None:
            self._first_loss = loss
        self._last_losses.append(loss)
        self._left -= 1
        if self._left == 0:
            self._left = next_wait(self._script, Took.now())

    def end(self, step: int) -> None:
        """Writes what was measured."""
        if not self._context.is_chief:
            return
        assert self._first_loss is not None, "training has ended before its first step"
        examples = BATCH * self._context.size
        last = sum(self._last_losses) / len(self._last_losses)
        measured = [Measurement.of(self._steps, self._ours, (self._first_loss, last), examples)]
        if self._rival is not None:
            measured.append(Measurement.of(self._steps, self._theirs, self._rival.losses, examples))
        write_measurements(Path(TOLD), measured)

    def _measure(self, agree: Callable[[int], int]) -> Generator[int, Took, None]:
        """What is done, in order: each `yield` waits for so many steps of ours, and gives both clocks then."""
        before = yield self._plan.first_steps
        now = yield GAUGE_STEPS
        step_secs = max((now.secs - before.secs) / GAUGE_STEPS, 1e-6)
        more = agree(round(self._plan.first_secs / step_secs) - self._plan.first_steps - GAUGE_STEPS)
        if more > 0:
            before, now = now, (yield more)
            step_secs = max((now.secs - before.secs) / more, 1e-6)
        self._steps = agree(min(MAX_STEPS, max(MIN_STEPS, round(self._plan.block_secs / step_secs))))
        warm_up = max(1, self._steps // WARM_SHARE)
        for turn in there_and_back(("ours", "rival"), self._plan.pairs):
            if turn == "ours":
                begun = yield warm_up
                ended = yield self._steps
                self._ours.append(ended.since(begun))
            elif self._rival is not None:
                self._theirs.append(self._rival.run(warm_up, self._steps))
        self._context.request_stop("all is measured")


def next_wait(script: Generator[int, Took, None], now: Took) -> int:
    """Goes on with `script`; returns the steps until it is to go on again, -1 where it has ended."""
    try:
        return script.send(now)
    except StopIteration:
        return -1


def make_rival(name: str | None, model_name: str, context: HookContext) -> Loop | KerasFit | None:
    """The rival called `name`, with a model and batches of its own. Collective."""
    if name is None:
        return None
    from peers.rivals import KerasFit, dataset_of, plain_loop

    model: Any = build_model({"model": model_name})
    dataset = dataset_of(*load_batches(Path.cwd(), model_name, context.rank, context.size, BATCH))
    if name == FIT:
        return KerasFit(model, dataset)
    assert name == SAME_FLAGS, name
    if context.size == 1:
        return plain_loop(model, dataset)
    import horovod.tensorflow as hvd

    return plain_loop(model, dataset, hvd)


def make_hooks() -> list[Hook]:
    """As the job file names it."""
    return [MeasuringHook(Plan(**json.loads(Path(PLAN).read_text())))]
