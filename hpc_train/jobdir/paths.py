"""Names of what hpc-train submit keeps in a job-dir. Pure."""

from __future__ import annotations

SUBMISSION_FILE = "submission.json"
CANCELLED_FILE = "cancelled.json"
SCRIPT_FILE = "job.sh"
CODE = "code"
LOGS = "logs"
LOG_FILE = "logs/job.out"
