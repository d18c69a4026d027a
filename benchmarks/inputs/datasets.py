"""Batches out of a tf.data.Dataset, ours and others', taken the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from support.timing import Competitor, in_turn

from inputs.files import Data

DRAIN_SECS = 0.05
MANY_STEPS = 1 << 30
WHOLE_PASS_SECS = 5.0


def batches_of(
    name: str,
    dataset: Any,
    data: Data,
    limit_secs: float,
    stack: ExitStack,
    look_at_first: Callable[[Any], None] = lambda batch: None,
    whole_pass_first: bool = False,
) -> Competitor:
    """Takes batches of an endless dataset, whose iterator stays open from run to run until `stack` closes."""
    batches: list[Iterator[Any]] = [iter(dataset)]
    stack.callback(batches.clear)
    look_at_first(next(batches[0]))

    def deliver(_: int) -> int:
        next(batches[0])
        return data.kind.batch_bytes

    if whole_pass_first:
        in_turn(deliver, data.steps, WHOLE_PASS_SECS)()

    return drained(name, deliver, data, limit_secs)


def drained(name: str, deliver: Callable[[int], int], data: Data, limit_secs: float) -> Competitor:
    """Calls `deliver` for a pass over the data.

    It is called for a moment before each run, too, until what was read ahead while others ran is gone: else batches
    would come for free, and the run would measure how large the buffers are.
    """
    until_empty = in_turn(deliver, MANY_STEPS, min(DRAIN_SECS, limit_secs))

    def prepare() -> None:
        until_empty()

    return Competitor(name, in_turn(deliver, data.steps, limit_secs), prepare)
