"""What a job-dir records of its job: what was submitted, status.json, and who has cancelled it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_train.jobs.record.submission import Submission, cancelled_by, read_submission
from hpc_train.telemetry.status import read_status, sound


@dataclass(frozen=True)
class JobRecord:
    """What the job-dir of one job records.

    Attributes:
        submission: None where the job was started without `hpc-train submit`.
        status: The content of status.json; it may be of an earlier submission or run.
        cancelled_by: Who has cancelled this submission.
    """

    job_dir: Path
    submission: Submission | None
    status: Mapping[str, Any]
    cancelled_by: str | None = None

    @property
    def number(self) -> str | None:
        """The job's in its queue, where it is known."""
        return self.submission.job_id if self.submission is not None else self.status.get("job_id")

    @property
    def has_reported_end(self) -> bool:
        """Whether the job-dir alone records how a submitted job ended, so that no queue need be asked of old jobs."""
        if self.submission is None or self.number is None or self.status.get("job_id") != self.number:
            return False
        reported = self.status.get("state")
        return reported in ("succeeded", "cancelled") or (
            reported in ("failed", "stopped") and isinstance(self.status.get("exit_code"), int)
        )


def read_record(job_dir: Path) -> JobRecord:
    """Reads it; what is missing or damaged is left out.

    A submission that was cut off before it had noted its number takes that of its ranks.
    """
    submission, status = read_submission(job_dir), sound(read_status(job_dir))
    by = cancelled_by(job_dir, submission)
    if submission is not None and submission.job_id is None and status.get("job_id"):
        submission = replace(submission, job_id=status["job_id"])
    return JobRecord(job_dir, submission, status, by)
