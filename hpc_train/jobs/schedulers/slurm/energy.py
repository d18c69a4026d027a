"""The energy of a job that has ended, as Slurm's accounting has it.

The step `.extern`, which sites with PrologFlags=Contain have, lasts as long as the job on each of its nodes. Each
other step counts its nodes as well, whole: `sacct -X` of a job without that step adds up the batch script's and those
of the ranks, and has nodes twice.
"""

from __future__ import annotations

import re
import shutil

from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.schedulers.slurm.queue import checked, run
from hpc_train.telemetry.energy.counter import MOST_JOULES

ASK_SECS = 10.0


def joules_of(job_id: str) -> float | None:
    """What the nodes of a job have used while it had them; None where accounting does not tell. Raises nothing."""
    if shutil.which("sacct") is None:
        return None
    try:
        words = ["--noheader", "--parsable2", f"--jobs={checked(job_id)}", "--format=JobID,ConsumedEnergyRaw"]
        done = run(["sacct", *words], ASK_SECS)
    except (SchedulerError, UserError):
        return None
    return parse_energy(done.stdout, job_id) if done.returncode == 0 else None


def parse_energy(text: str, job_id: str) -> float | None:
    """Of sacct's lines `17.extern|1234`; None where there is none such, or it shows nothing that can be. Pure.

    A heterogeneous job has one of each component, `17+0.extern|1234`: their sum, where all of them tell.
    """
    lines = re.findall(rf"(?m)^{re.escape(job_id)}(\+[0-9]+)?(\.extern)?\|([0-9]{{0,20}})$", text)
    components = {component for component, _, _ in lines}
    joules = {component: int(number or 0) for component, step, number in lines if step}
    if not components or components - joules.keys() or not all(0 < one <= MOST_JOULES for one in joules.values()):
        return None
    return float(sum(joules.values()))
