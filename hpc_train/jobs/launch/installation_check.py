"""Whether a queue's job may start: it runs the hpc_train that it was submitted with, or not at all.

`python -m hpc_train.jobs.launch.installation_check JOBDIR`, before the first rank, by the job's own Python: exit
code 0, or 2 with a sentence, which the job-dir records as well.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from hpc_train.jobs.launch.record_end import record_end
from hpc_train.jobs.record.installation import PACKAGE, problem_of, remedy
from hpc_train.jobs.record.submission import Submission, read_submission
from hpc_train.outcome import EXIT_BAD_INPUT
from hpc_train.text import visible


def refusal(submission: Submission, job_dir: Path, package: Path | None = None) -> str | None:
    """Why the job must not start in this process's Python, and what to do; None: it may. Local.

    Args:
        package: The folder of hpc_train that the ranks' Python imports; None: as the job was told to.
    """
    found = submission.installation
    if found is None:  # submitted by a version without such a record
        return None
    problem = problem_of(found, job_dir)
    here = platform.python_version()
    if problem is None and here.split(".")[:2] != found.python_version.split(".")[:2]:
        problem = f"it was submitted with {found}, but {found.python} is Python {here} by now"
    if problem is None and package is not None and package.resolve() != found.code(job_dir).resolve():
        problem = f"it was submitted with {found}, but {found.python} imports {package} by now"
    return None if problem is None else f"the job does not start: {problem}; {remedy(job_dir)}"


def main(job_dir: Path) -> int:
    """The exit code: 0, or EXIT_BAD_INPUT with a sentence on standard error."""
    submission = read_submission(job_dir)
    if submission is None or (why := refusal(submission, job_dir, PACKAGE)) is None:
        return 0
    sys.stderr.write(f"hpc-train: error: {visible(why)}\n")
    sys.stderr.flush()
    record_end(job_dir, EXIT_BAD_INPUT, None, submission.token, submission.kind == "program")
    return EXIT_BAD_INPUT


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
