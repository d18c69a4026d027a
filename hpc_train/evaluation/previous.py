"""What earlier runs of a job have evaluated, as its metrics.jsonl tells."""

from __future__ import annotations

import json
import math
from pathlib import Path

from hpc_train.telemetry.metrics import METRICS_FILE, NOT_METRICS


def evaluation_of(job_dir: Path, kind: str, taken: float, what: str | None, only_last: bool) -> dict[str, float] | None:
    """The metrics of an evaluation of the checkpoint taken at `taken`, where there was one.

    Args:
        what: Of which data (Evaluator.what); None: that cannot be known, and so it is made again.
        only_last: Of those made when training had ended: it may have changed the weights for them.
    """
    found = None
    if what is None:
        return None
    try:
        with open(job_dir / METRICS_FILE, errors="replace") as lines:
            for line in lines:
                if f'"{kind}"' not in line[:80]:  # a line about many ranks is long
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(record, dict) or (record.get("last") is not True and only_last):
                    continue
                if [record.get(name) for name in ("kind", "checkpoint_time", "what")] == [kind, taken, what]:
                    found = record
    except OSError:
        return None
    if found is None:
        return None
    return {name: math.nan if value is None else value for name, value in found.items() if name not in NOT_METRICS}
