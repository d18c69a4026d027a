"""`python -m hpc_train.jobs.schedulers.local JOB_DIR TICKET` looks after a job in this machine's queue.

TICKET is the number of the ticket's open file, which the process that submitted the job hands down.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hpc_train import stdio
from hpc_train.jobs.schedulers.local.runner import run_queued
from hpc_train.jobs.schedulers.local.scheduler import this_queue

if __name__ == "__main__":
    stdio.set_up()
    sys.exit(run_queued(Path(sys.argv[1]), int(sys.argv[2]), this_queue()))
