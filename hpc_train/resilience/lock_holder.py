"""Who holds the lock of a job-dir: the record in lock.json, and what one such record says of another."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from hpc_train.processes import identity
from hpc_train.telemetry.status import SUPERVISOR_VARIABLE, job_fields, sound

Record = dict[str, Any]
Verdict = Literal["take", "watch"]


def my_record(env: Mapping[str, str]) -> Record:
    """Who this process is, for the file.

    Its `identity`, `slurm_job_id` ("A_a" for a task of an array, None outside Slurm), `slurm_restarts`, `restarts` (by
    Slurm, a batch script or `hpc-train launch`), `supervisor` (the pid of the last), and `started` (now, seconds since
    1970).
    """
    job, restarts = env.get("SLURM_JOB_ID"), env.get("SLURM_RESTART_COUNT", "")
    if "SLURM_ARRAY_TASK_ID" in env:
        job = f"{env.get('SLURM_ARRAY_JOB_ID', job)}_{env['SLURM_ARRAY_TASK_ID']}"
    return {
        **identity(),
        "slurm_job_id": job,
        "slurm_restarts": int(restarts) if restarts.isdecimal() else 0,
        "restarts": job_fields(env)["restarts"],
        "supervisor": env.get(SUPERVISOR_VARIABLE),
        "started": time.time(),
    }


def judge(found: Record, mine: Record, flocked: bool) -> Verdict:
    """What to do about the lock of `found`, whose flock we have got, or could not ask for (not `flocked`). Pure.

    On one host the kernel has let go of a dead process's flock, so having got it is proof. It is none across hosts:
    on some file systems flock is the node's own affair (Lustre's localflock, NFS's local_lock). A job that Slurm has
    started again cannot still run elsewhere.
    """
    if flocked and found.get("host") == mine["host"]:
        return "take"
    same_job = mine["slurm_job_id"] is not None and found.get("slurm_job_id") == mine["slurm_job_id"]
    return "take" if same_job and found.get("slurm_restarts") != mine["slurm_restarts"] else "watch"


def is_earlier_run(found: Record, mine: Record) -> bool:
    """Whether `found` is of a run of the same job that had ended when what started it started `mine`. Pure."""
    counts: tuple[str, ...] = ("restarts",)
    if mine["slurm_job_id"] is not None and found.get("slurm_job_id") == mine["slurm_job_id"]:
        counts = ("slurm_restarts", "restarts")  # after a requeue, the script counts anew
    elif mine["supervisor"] is None or found.get("supervisor") != mine["supervisor"]:
        return False
    before = [found.get(name) for name in counts]
    known = [count for count in before if isinstance(count, int)]
    return len(known) == len(counts) and known < [mine[name] for name in counts]


def describe(record: Record) -> str:
    """`record` in words: host, pid, and Slurm job where it is one."""
    host, pid, job = (str(record.get(name) or "unknown")[:255] for name in ("host", "pid", "slurm_job_id"))
    return f"host {host}, pid {pid}" + (f", Slurm job {job}" if job != "unknown" else "")


def refusal(job_dir: Path, holder: Record) -> str:
    """The message for a job that finds its job-dir in use by `holder`."""
    since = ""
    if (started := sound(holder).get("started")) is not None:
        when = datetime.fromtimestamp(started).astimezone().isoformat(" ", "seconds")
        since = f" since {when}"
    return (
        f"{job_dir}: another job uses this job-dir{since}: {describe(holder)}; "
        "wait until it has ended, stop it, or give this job another --job-dir"
    )
