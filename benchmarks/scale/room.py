"""Whether a model fits into the memory of the ranks that are to train it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hpc_train.data.loading.memory import available_bytes
from scale.measuring import Curve
from scale.workloads import PROCESS_BYTES, WORKLOADS, emulated_bytes

MIB = 1 << 20


def check_room(curve: Curve, gpus: Sequence[Mapping[str, Any]], left_bytes: float | None = None) -> str | None:
    """Why the ranks of `curve` do not fit, as a sentence, or None. Of a user's own job nothing is known."""
    workload = WORKLOADS.get(curve.workload)
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    cases = curve.cases()
    if workload is None:
        needed = max(-(-case.ranks // nodes) * emulated_bytes(curve.gradient_bytes) for case in cases)
        return _too_much(needed, left_bytes, "--gradient-mb") if curve.emulate_step_ms is not None else None
    if gpus:
        needed = max(workload.rank_bytes(case.batch or 1) - PROCESS_BYTES for case in cases)
        there = min((float(gpu["memory_mib"]) for gpu in gpus if gpu["memory_mib"]), default=math.inf) * MIB
        if needed > there:
            return f"a rank needs about {needed / 1e9:.0f} GB of GPU memory, there are {there / 1e9:.0f}; try --batch"
        return None
    needed = max(-(-case.ranks // nodes) * workload.rank_bytes(case.batch or 1) for case in cases)
    return _too_much(needed, left_bytes, "--batch")


def _too_much(needed: float, left_bytes: float | None, option: str) -> str | None:
    there = left_bytes if left_bytes is not None else available_bytes()
    if needed <= there:
        return None
    return f"the ranks of a node need about {needed / 1e9:.0f} GB, {there / 1e9:.0f} are free; try {option} or --ranks"
