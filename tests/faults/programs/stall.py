"""Ranks that work together a step at a time, with a watchdog, until one of them does what it is told to.

Arguments: the job-dir, stall_timeout_secs, the rank, and what it does at step 4: stop
(SIGSTOP), hang (while the others wait for it), hold (Python's lock, for ever), nothing.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from hpc_train.distributed.startup import join_world
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.watchdog import watch_over

job_dir, timeout_secs, who, what = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
world = join_world()
if world.is_chief:
    (job_dir / "logs").mkdir(parents=True, exist_ok=True)
    (job_dir / "status.json").write_text('{"state": "running", "step": 4}')
failure = FailureReport(job_dir / "logs", world.broadcast("run"))


def together() -> None:
    watchdog.waits(True)
    world.all_gather(world.rank)
    watchdog.waits(False)


with watch_over(world, job_dir, failure, timeout_secs) as watchdog:
    for step in range(1, 6):
        watchdog.at("training step", step)
        time.sleep(0.2)
        together()
        if step == 4 and world.rank == who:
            watchdog.at("export", step)
            (job_dir / "began").write_text(f"{time.time()}")
            if what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if what == "hold":
                ctypes.PyDLL(None).sleep(1000)
            time.sleep(1000 if what == "hang" else 0)
print(f"rank {world.rank} has done its steps")
