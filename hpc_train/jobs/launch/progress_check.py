"""Runs of a job that ended before it was done: counted in its job-dir, so that it is not started again for ever."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpc_train.files import open_to_append, read_bytes
from hpc_train.folders import make_folder
from hpc_train.jobdir.paths import (
    CANCELLED_FILE,
    CHECKPOINTS,
    CODE,
    DATA_FILE,
    ENVIRONMENT_FILE,
    INSTALLATION,
    JOB_FILE,
    LOCK_FILE,
    LOGS,
    REQUEUES_FILE,
    SCHEMA_FILE,
    SCRIPT_FILE,
    SECRETS_FILE,
    SUBMISSION_FILE,
    checkpoint_name,
)
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.json_files import MAX_JSON_BYTES
from hpc_train.telemetry.status import job_fields, read_status, sound

MAX_IDLE_RUNS = 3
"""So many runs in a row that saved nothing are the last of their job; preempted ones do not count."""
MAX_FILES_SEEN = 20_000
"""A program that has left more files than that is taken to save."""

_OUR_FOLDERS = (LOGS, CODE, INSTALLATION)
_OUR_FILES = (
    *(SUBMISSION_FILE, SECRETS_FILE, SCRIPT_FILE, CANCELLED_FILE, STATUS_FILE),
    *(JOB_FILE, SCHEMA_FILE, DATA_FILE, ENVIRONMENT_FILE, LOCK_FILE),
)


@dataclass(frozen=True)
class CutRun:
    """A run that ended before the job was done, and not by preemption.

    Attributes:
        job: Its number in the queue, which it keeps when it is started again.
        step: The newest checkpoint there was, or None. Of a program of the user's own: 0, or None where it has left
            no file.
        saved: Whether this run had saved it.
        run: Which run of the job it was, "requeues.restarts"; None in files of earlier versions.
    """

    job: str
    step: int | None
    saved: bool
    run: str | None = None


def why_not_again(job_dir: Path | None, step: int | None, program: bool, env: Mapping[str, str]) -> str | None:
    """Adds the run that has just ended to REQUEUES_FILE. Returns why the job should not be started again, or None.

    A run that was the last to be added is not added again: a signal may come, and ask anew, just when it has been.

    Args:
        job_dir: None where it is not known.
        step: The newest checkpoint.
        program: It is a program of the user's own, which has saved where it has left files in `job_dir`.
        env: With what the queue reports of the job.
    """
    queue = job_fields(env)
    job, run = str(queue["job_id"]), f"{queue['requeues']}.{queue['restarts']}"
    runs: list[CutRun] = []
    if job_dir is not None and job_dir.is_dir():
        runs = _read_runs(job_dir, job)
        if not runs or runs[-1].run != run:
            step, saved = _look_for_files(job_dir) if program else (step, _saved_since(job_dir, step, runs))
            runs.append(CutRun(job, step, saved, run))
            with suppress(OSError):
                make_folder((job_dir / REQUEUES_FILE).parent)
                with open_to_append(job_dir / REQUEUES_FILE) as file:
                    file.write((json.dumps({**asdict(runs[-1]), "time": time.time()}) + "\n").encode())
    idle = idle_runs(runs, queue["restarts"])
    if idle < MAX_IDLE_RUNS:
        return None
    newest = "no checkpoint" if step is None else f"no checkpoint newer than step {step}"
    saves, often = f"saved {newest}", "have checkpoints saved more often (save_checkpoints_steps or _secs)"
    if program:
        saves, often = f"written nothing into {job_dir or 'their job-dir'}", "have the program save more often"
    return (
        f"not started again: {idle} runs in a row have {saves}; submit again with more time (`time` "
        f"under `resources:`, or sbatch --time), or {often}"
    )


def idle_runs(runs: Sequence[CutRun], restarts: int) -> int:
    """How many runs in a row, up to now, have saved nothing; `runs` are those of this job, the last one included.

    Where there is no checkpoint at all, none of the 1 + `restarts` runs has saved one, however it ended. Pure.
    """
    idle = 0
    for run in reversed(runs):
        if run.saved:
            return idle
        idle += 1
    return max(idle, restarts + 1) if not runs or runs[-1].step is None else idle


def _read_runs(job_dir: Path, job: str) -> list[CutRun]:
    try:
        lines = read_bytes(job_dir / REQUEUES_FILE, MAX_JSON_BYTES).splitlines()
    except OSError:
        return []
    runs = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError, RecursionError):  # such as a line that a full disk has cut off
            run = json.loads(line)
            if run["job"] == job:
                runs.append(CutRun(job, run["step"], run["saved"], run.get("run")))
    return runs


def _saved_since(job_dir: Path, step: int | None, runs: Sequence[CutRun]) -> bool:
    """Whether the run that has just ended saved the checkpoint of `step`; `runs` are those before it."""
    if step is None:
        return False
    if runs:
        return runs[-1].step is None or step > runs[-1].step
    try:  # the first run of this job, which may go on from checkpoints of another
        written = (job_dir / CHECKPOINTS / checkpoint_name(step)).stat().st_mtime
        return bool(written >= sound(read_status(job_dir)).get("started", 0))
    except OSError:
        return True


def _look_for_files(job_dir: Path) -> tuple[int | None, bool]:
    """Of a program of the user's own: 0 if it has left files, else None; and whether one is as new as this run."""
    begin = sound(read_status(job_dir)).get("started", 0.0)
    seen = 0
    for folder, folders, names in os.walk(job_dir):
        if Path(folder) == job_dir:
            folders[:] = [name for name in folders if name not in _OUR_FOLDERS]
            names = [name for name in names if name not in _OUR_FILES]
        for name in names:
            seen += 1
            with suppress(OSError):  # it has just gone
                if seen > MAX_FILES_SEEN or (Path(folder) / name).lstat().st_mtime >= begin:
                    return 0, True
    return (0 if seen else None), False
