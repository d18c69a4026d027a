"""All entries of a job's bundle, in turn, and the secrets that must not be in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from hpc_train.bundle.contents import Entry, of_job_dir
from hpc_train.bundle.machine import of_machine, of_python
from hpc_train.bundle.redaction import Redaction
from hpc_train.doctor.examine import examine
from hpc_train.errors import UserError
from hpc_train.jobs.inspect import inspect_job
from hpc_train.jobs.record.submission import read_submission

ReportLine = Callable[[str], None]


def redaction_of(job_dir: Path) -> Redaction:
    """What takes the job's own secrets out of texts; they are known where this user may read them."""
    submission = read_submission(job_dir)
    return Redaction([] if submission is None else map(str, submission.wants.environment.values()))


def entries_of(job_dir: Path, with_doctor: bool, report: ReportLine) -> Iterator[Entry]:
    """What `hpc-train describe` knows of the job, its files, and what its scheduler, Python and this machine say.

    Args:
        with_doctor: Makes the checks of `hpc-train doctor`, too; some 15 s.
        report: Called with what is being looked at.
    """
    report("the job")
    submission = read_submission(job_dir)
    try:
        yield Entry("job/describe.json", json.dumps(asdict(inspect_job(job_dir)), indent=1) + "\n")
    except UserError as error:
        yield Entry("job/describe.json", "", str(error))
    if submission is not None and (lost := submission.lost_secrets):
        yield Entry("secrets.txt", "", f"values of {', '.join(lost)} are not known here, and may be in the texts")
    try:
        yield from of_job_dir(job_dir)
    except OSError as error:
        yield Entry("files.txt", "", f"the job-dir cannot be read: {error.strerror}")
    report("this machine")
    number = submission.job_id if submission is not None and submission.backend == "slurm" else None
    yield from of_machine(number)
    yield from of_python()
    if with_doctor:
        findings = [json.dumps(asdict(found)) for found in examine(job_dir.parent, report)]
        yield Entry("doctor.jsonl", "".join(f"{finding}\n" for finding in findings))
