"""Names of what this package writes into a job-dir; jobdir/paths.py has those of the others."""

from __future__ import annotations

STATUS_FILE = "status.json"
METRICS_FILE = "metrics.jsonl"
