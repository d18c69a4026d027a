"""The numbers to reach, and what was measured beside them. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Sequence

from support.report import Target

from checkpoints.baselines import KERAS_WEIGHTS, MEMCPY
from checkpoints.cases import Settings
from checkpoints.results import OURS, Results

STALL_MEMCPY = 2.0
STALL_KERAS, STALL_KERAS_SIZE = 0.5, "67 MB"
SLOW_DOWN = 0.1


def targets(results: Results, settings: Settings) -> list[Target]:
    """All targets, in the order of the issue that set them."""
    names = [size.name for size in settings.sizes]
    return [
        _stall(results, f"≤ {STALL_MEMCPY:g} x memcpy of the state", MEMCPY, STALL_MEMCPY, names),
        _stall(results, f"≤ {STALL_KERAS:g} x {KERAS_WEIGHTS}", KERAS_WEIGHTS, STALL_KERAS, [STALL_KERAS_SIZE]),
        Target(
            "Steps lost while a save is in flight, TensorFlow on one core of two or more",
            f"≤ {SLOW_DOWN:.0%}",
            [(one.size, f"{lost:.1%}", lost <= SLOW_DOWN) for one in results.steps for lost in [one.lost(one.writing)]],
        ),
    ]


def _stall(results: Results, wanted: str, baseline: str, most: float, sizes: Sequence[str]) -> Target:
    measured = []
    for size in sizes:
        found = results.get(size, "stall", OURS)
        if found is not None:
            ratio = found.ratios[baseline]
            measured.append((size, f"{ratio:.3g}", ratio <= most))
    return Target("Stall of a save", wanted, measured)
