"""How a job ends that cannot go on: one report, the status set to failed, and no rank left waiting."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_train.distributed.world import World
from hpc_train.errors import JobEndedError, RankError
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_FAILED
from hpc_train.resilience.cause import refused_batch
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import JobStopped
from hpc_train.telemetry.metrics import note_failed
from hpc_train.telemetry.status import mark_failed
from hpc_train.text import LINES, visible

OTHERS_REPORT_SECS = 10.0
"""The time that the rank which reports a failure has before another one ends all ranks."""
OTHERS_BEGIN_SECS = 300.0
"""What it is given to begin: the chief finishes the checkpoint that it is writing first."""


@contextmanager
def ends_all_ranks(world: World, job_dir: Path, failure: FailureReport, lock: JobLock) -> Iterator[None]:
    """An exception of one rank ends the job, with the code of a JobEndedError or else EXIT_FAILED. Local.

    JobStopped, on which all ranks agree, passes. What a layer says of ids that it cannot take is a JobEndedError.
    """
    try:
        yield
    except BaseException as raised:
        if isinstance(raised, JobStopped):
            raise
        error = raised
        if not isinstance(raised, RankError) and (refused := refused_batch(raised)):
            doing = failure.at()[0]
            text = f"{refused}; mend the data, or give the layer more rows"
            error = JobEndedError(f"{doing}: {text}" if doing else text, EXIT_BAD_INPUT, world.rank)
        code = error.code if isinstance(error, JobEndedError) else EXIT_FAILED
        try:
            report = None if isinstance(error, RankError) else failure.claim(world.rank, error)
            if report is not None:
                if world.size == 1 and not isinstance(error, JobEndedError) and hasattr(error, "add_note"):
                    error.add_note(str(failure.describe(world.rank, error)))  # Python prints it after the traceback
                if world.size > 1:
                    sys.stderr.write(visible(report, LINES))
                    sys.stderr.flush()
                if lock.taken_by is None:  # else the job-dir is another job's
                    found = failure.describe(world.rank, error)
                    mark_failed(job_dir, found.error, found.step)
                    note_failed(job_dir, str(found))
            elif world.size > 1:
                _leave_it_to_others(failure)
        finally:
            if world.size > 1:
                lock.release()
                world.abort(code)
        if error is not raised:
            raise error from None
        raise


def _leave_it_to_others(failure: FailureReport) -> None:
    """Waits for the rank that reports the failure, which then ends this one."""
    deadline = time.monotonic() + OTHERS_BEGIN_SECS
    while not failure.path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(OTHERS_REPORT_SECS)
