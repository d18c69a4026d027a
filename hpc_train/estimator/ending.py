"""How a job ends that cannot go on: one report, the status set to failed, and no rank left waiting."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_train.cluster.world import World
from hpc_train.errors import EXIT_FAILED, JobEndedError, RankError
from hpc_train.monitoring.status import mark_failed
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import STOP_CODES

OTHERS_TELL_SECS = 10


@contextmanager
def ends_all_ranks(world: World, job_dir: Path, failure: FailureReport, lock: JobLock) -> Iterator[None]:
    """An exception of one rank ends the job, with the code of a JobEndedError or else EXIT_FAILED. Local.

    A SystemExit with the code of a stop signal, on which all ranks agree, passes.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in STOP_CODES.values():
            raise
        code = error.code if isinstance(error, JobEndedError) else EXIT_FAILED
        try:
            if isinstance(error, RankError):
                time.sleep(OTHERS_TELL_SECS)  # the rank that failed tells it, and ends this one
            elif (report := failure.claim(world.rank, error)) is not None:
                if world.size > 1:
                    sys.stderr.write(report)
                    sys.stderr.flush()
                mark_failed(job_dir, world.rank, error)
        finally:
            if world.size > 1:
                lock.release()
                world.abort(code)
        raise
