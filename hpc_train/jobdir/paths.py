"""What a job leaves in its job-dir, by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

JOB_FILE = "job.yaml"
"""The job, resolved. Written when training begins, as the next three are."""
SCHEMA_FILE = "schema.yaml"
"""Of a built-in model of a table; job.yaml names it."""
DATA_FILE = "data.json"
ENVIRONMENT_FILE = "environment.json"
EARLY_STOP_FILE = "early_stop.json"
WARM_START_FILE = "warm_start.json"
SLOW_NODES_FILE = "slow_nodes.json"
LOCK_FILE = "lock.json"
REPORT_FILE = "report.html"
CHECKPOINTS = "checkpoints"
EXPORTS = "export"
LOGS = "logs"

SUBMISSION_FILE = "submission.json"
"""Of hpc-train submit, as the following are."""
CANCELLED_FILE = "cancelled.json"
SECRETS_FILE = "secrets.sh"
"""The variables of `resources.environment`, which nobody else may read."""
SCRIPT_FILE = "job.sh"
PACKS_FILE = "packs.sha256"
"""The packs that each node of the job unpacks: SHA-256 and path, one a line, first that of the environment."""
PACKAGES = "packages"
"""What `resources.requirements` comes to; with a pack PACKAGES.tar."""
CODE = "code"
INSTALLATION = "installation"
"""The copy of hpc_train itself, where that was a checkout."""
LOG_FILE = f"{LOGS}/job.out"
REQUEUES_FILE = f"{LOGS}/requeues.jsonl"
"""One line for each run that was to be started again, other than after preemption (CutRun)."""

STUDY_FILE = "study.json"
"""Of a study's folder, which is no job-dir: hpc_train.tuning.search.folder."""

OWN_FILES = (
    *(JOB_FILE, SCHEMA_FILE, DATA_FILE, ENVIRONMENT_FILE, EARLY_STOP_FILE, WARM_START_FILE, LOCK_FILE, REPORT_FILE),
    SLOW_NODES_FILE,
    *(SUBMISSION_FILE, CANCELLED_FILE, SECRETS_FILE, SCRIPT_FILE),
    *(PACKS_FILE, f"{PACKAGES}.tar"),
)
"""At the top of a job-dir, beside its folders and what telemetry writes."""

_CHECKPOINT = re.compile(r"step-(\d{8,})")


def export_path(job_dir: Path, recorded: str) -> str:
    """Where an export of the job lies now, which was made at `recorded`: the job-dir may have moved since."""
    parts = Path(recorded).parts
    there = job_dir.joinpath(*parts[-3:])
    return str(there) if len(parts) > 3 and parts[-3] == EXPORTS and there.is_dir() else recorded


def checkpoint_name(step: int) -> str:
    """The folder of the checkpoint of `step`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of the checkpoint folder `name`, or None where it is none."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of the committed checkpoints in `folder`, lowest first; empty where there is no such folder.

    Raises:
        OSError: It cannot be listed.
    """
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(step for name in names if (step := step_of(name)) is not None and (folder / name).is_dir())
