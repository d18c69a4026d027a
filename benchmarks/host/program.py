"""One rank that trains a model with next to nothing to compute, and tells how long a step takes, as JSON.

python -m host.program --way "0 in flight" --steps 4000 --out told.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from host.clocks import Clocks
from host.plain import WARM_UP, Marks, empty_model, same_batch, train
from hpc_train.data.loading.feed import Feed
from hpc_train.engine import own_train_step, step_report, train_step
from hpc_train.engine.lifecycle import Lifecycle
from hpc_train.engine.loop import TrainingLoop
from hpc_train.resilience.watchdog import Watchdog

FIT = "Keras fit"
BY_PART = "by part"


class Call:
    """TensorFlow's own call of a step, with the arguments of the last one."""

    def __init__(self) -> None:
        self._step: Callable[..., Any] = tuple
        self._given: tuple[Any, ...] = ()

    def noted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step`, whose arguments are kept."""
        self._step = step

        def noting(*given: Any) -> Any:
            self._given = given
            return step(*given)

        return noting

    def alone_us(self, steps: int) -> float:
        """Microseconds of one call and of reading its report, in a loop that does nothing else."""
        for _ in range(steps // 10):
            self._step(*self._given)[0].numpy()
        begun = time.perf_counter()
        for _ in range(steps):
            self._step(*self._given)[0].numpy()
        return (time.perf_counter() - begun) / steps * 1e6


def of_package(in_flight: int, steps: int, by_part: bool) -> dict[str, Any]:
    """A job of hpc_train."""
    clocks, call = Clocks(), Call()
    marks, reporting = Marks(steps, clocks.restart), step_report.reporting

    def noted(step: Callable[..., Any], *names: Any) -> step_report.TrainStep:
        step = call.noted(step)
        return reporting(clocks.timed("TensorFlow's call", step) if by_part else step, *names)

    with ExitStack() as stack:
        for module in (train_step, own_train_step):
            stack.enter_context(patch.object(module, "reporting", noted))
        parts: dict[str, tuple[tuple[Any, str], ...]] = {
            "loop": ((TrainingLoop, "_train"),),
            "feed": ((Feed, "__next__"),),
            "watchdog": ((Watchdog, "at"),),
            "hooks": ((Lifecycle, "before_step"), (Lifecycle, "after_step")),
            "rates and shares": ((TrainingLoop, "_count"),),
            "records, checkpoints": tuple((TrainingLoop, name) for name in ("_report", "_compare", "_save")),
            "the report's numbers": ((step_report, "to_host"),),
        }
        for part, functions in parts.items() if by_part else ():
            for owner, name in functions:
                stack.enter_context(patch.object(owner, name, clocks.timed(part, getattr(owner, name))))
        train(marks, steps, steps_in_flight=in_flight)
    told = {**marks.told(), "call_us": call.alone_us(marks.counted)}
    return {**told, "parts_us": {part: 1e6 * secs / marks.counted for part, secs in clocks.last.items()}}


def of_fit(steps: int) -> dict[str, Any]:
    """Keras alone."""
    model = empty_model()
    counted = steps - int(steps * WARM_UP)
    model.fit(same_batch(), steps_per_epoch=steps - counted, verbose=0)
    wall, cpu = time.perf_counter(), time.thread_time()
    model.fit(same_batch(), steps_per_epoch=counted, verbose=0)
    per_step = 1e6 / counted
    return {"wall_us": (time.perf_counter() - wall) * per_step, "thread_us": (time.thread_time() - cpu) * per_step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.way == FIT:
        told = of_fit(args.steps)
    else:
        in_flight = 0 if args.way == BY_PART else int(args.way.split()[0])
        told = of_package(in_flight, args.steps, args.way == BY_PART)
    args.out.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
