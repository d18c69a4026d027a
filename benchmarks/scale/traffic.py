"""What the memory of one machine lets many emulated ranks reach at most: accelerators' nodes would not share it. Pure.

Each rank goes over its gradients several times in a step; a pass costs what memcpy of as many bytes does.
"""

from __future__ import annotations

from collections.abc import Iterable

from scale_model.measured import BENCHMARK, ONE_NODE, OPERATION, Measured

MEMCPY = "memcpy"
FUSION_PASSES = 2.0
"""Into Horovod's fusion buffer, and out of it."""
MEAN_PASSES = 1.0
"""Sums are divided by the number of ranks."""
UPDATE_PASSES = 2.0
"""The check that all numbers are finite, and the update of the variables."""


def passes(ranks: int) -> float:
    """Over the gradients, by each rank and step.

    A ring-allreduce sends 2(n-1)/n of them, each a copy, and adds up (n-1)/n (Patarasuk and Yuan 2009).
    """
    if ranks == 1:
        return UPDATE_PASSES
    ring = 3 * (ranks - 1) / ranks
    return FUSION_PASSES + ring + MEAN_PASSES + UPDATE_PASSES


def memory_rate(records: Iterable[Measured]) -> float | None:
    """Bytes a second that all ranks of a run of collectives.py copied together, in blocks too large for caches."""
    found = [
        (record.config["bytes"], record.ranks * record.config["bytes"] / record.config["secs"])
        for record in records
        if record.benchmark == BENCHMARK
        and (record.config["operation"], record.config["place"], record.config["way"]) == (OPERATION, ONE_NODE, MEMCPY)
    ]
    return max(found)[1] if found else None


def most_efficiency(ranks: int, step_secs: float, gradient_bytes: float, bytes_per_sec: float) -> float:
    """Of as many times one rank, where `ranks` wait for `step_secs` at once but take turns at the memory."""

    def step(n: int) -> float:
        return step_secs + n * passes(n) * gradient_bytes / bytes_per_sec

    return step(1) / step(ranks)
