"""Names of what this package writes into a job-dir; jobdir/paths.py has all of them."""

from __future__ import annotations

STATUS_FILE = "status.json"
METRICS_FILE = "metrics.jsonl"
NOT_METRICS = frozenset({"kind", "step", "time", "secs", "lag_steps", "lag_secs", "checkpoint_time", "what", "last"})
"""What the record of an evaluation holds beside the metrics."""
