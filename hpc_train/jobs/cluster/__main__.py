"""`python -m hpc_train.jobs.cluster CLUSTER JOB_DIR PROGRAM…` runs `python PROGRAM…` as one member of a cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpc_train import stdio
from hpc_train.errors import UserError
from hpc_train.outcome import EXIT_BAD_INPUT
from hpc_train.text import visible

if __name__ == "__main__":
    env = dict(os.environ)  # an import takes the time of the launch out of it
    from hpc_train.jobs.cluster.member import run_member

    stdio.set_up()
    try:
        sys.exit(run_member(sys.argv[1], Path(sys.argv[2]), sys.argv[3:], env))
    except UserError as error:
        stdio.write_directly(f"hpc-train: error: {visible(str(error))}")
        sys.exit(EXIT_BAD_INPUT)
