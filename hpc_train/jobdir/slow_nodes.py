"""The nodes that a job has named slow and is to be started without: `slow_nodes.json` in its job-dir."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_train.jobdir.paths import SLOW_NODES_FILE, SUBMISSION_FILE
from hpc_train.telemetry.json_files import read_json, write_json

MOST_NODES = 1000
MAY_LOSE_NODES = ("HPC_TRAIN_MIN_NODES", "HPC_TRAIN_SPARE_NODES")
"""Variables of slurm/train.sh for jobs that go on in their allocation without some of their nodes."""
_HOST = re.compile("[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def read_slow_nodes(job_dir: Path) -> tuple[str, ...]:
    """Their names as the machines have them, in order; empty where there is no such file, or none of this package's."""
    nodes = read_json(job_dir / SLOW_NODES_FILE).get("nodes")
    known = nodes if isinstance(nodes, dict) and len(nodes) <= MOST_NODES else {}
    return tuple(sorted(name for name in known if _HOST.fullmatch(name)))


def add_slow_node(job_dir: Path, host: str, about: Mapping[str, Any]) -> None:
    """Adds a node and why; the file is replaced. For the chief.

    Raises:
        OSError: It cannot be written.
    """
    before = read_json(job_dir / SLOW_NODES_FILE).get("nodes")
    known = {name: why for name, why in before.items() if _HOST.fullmatch(name)} if isinstance(before, dict) else {}
    if host not in known and len(known) >= MOST_NODES:
        return
    write_json(job_dir / SLOW_NODES_FILE, {"nodes": {**known, host: dict(about)}})


def next_start_without(host: str, job_dir: Path, env: Mapping[str, str]) -> str:
    """Who leaves a node that was noted out of the next start of this job, in words. Local."""
    noted, host = job_dir / SLOW_NODES_FILE, host.partition(".")[0]
    if (job_dir / SUBMISSION_FILE).is_file():
        return f"`hpc-train resume {job_dir.name}` asks for other nodes than {host}, noted in {noted}"
    if "SLURM_JOB_ID" in env:
        exclude = f"give sbatch or salloc --exclude={host}; noted in {noted}"
        if any(env.get(name) for name in MAY_LOSE_NODES):
            return f"the next start in this allocation leaves {host} out where enough others are left; later, {exclude}"
        return f"to start the job without {host} {exclude}"
    return (
        f"nothing leaves {host} out when this job starts again, since it was not submitted by hpc-train; give "
        "`hpc-train launch --hosts`, or your launcher, other hosts"
    )
