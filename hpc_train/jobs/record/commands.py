"""What each rank of a submitted job runs, after `python`. Pure."""

from __future__ import annotations

from pathlib import Path

from hpc_train.jobdir.paths import CODE
from hpc_train.jobs.record.submission import Submission


def job_command(job_dir: Path, submission: Submission) -> list[str]:
    """The arguments of Python, in the folder of the job's code."""
    if submission.kind == "program":
        return list(submission.args)
    return ["-m", "hpc_train", *train_arguments(job_dir, submission)]


def train_arguments(job_dir: Path, submission: Submission) -> list[str]:
    """Those of hpc-train, for a model."""
    folder = Path(submission.job_file).parent
    settings = [word for setting in submission.settings for word in ("--set", setting)]
    entry = str(job_dir / CODE / submission.entry)
    return ["train", entry, "--job-dir", str(job_dir), "--data-root", str(folder), *settings]
