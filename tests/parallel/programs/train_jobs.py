"""Runs `hpc-train train` for several jobs, one after the other in the same ranks. Arguments: job file, job-dir, …"""

import sys

from hpc_train.cli.app import app
from hpc_train.distributed.world import join_world
from hpc_train.resilience.signals import StopSignals

for job_file, job_dir in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    app(["train", job_file, "--job-dir", job_dir], obj=StopSignals(), standalone_mode=False)
    if join_world().is_chief:
        print("next job", flush=True)
    import keras

    keras.utils.clear_session()  # names of layers begin anew
