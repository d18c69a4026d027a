"""The end of a Slurm job, as slurm/train.sh sees it: noted in the job-dir, where killed ranks could not do so."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_train.checkpoint.layout import checkpoint_name, step_of
from hpc_train.config.yamlfile import read_yaml
from hpc_train.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_NOT_REQUEUED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    UserError,
)
from hpc_train.monitoring.files import write_json
from hpc_train.monitoring.status import STATUS_FILE, read_status

Requeue = Literal["warning", "preemption", "lost-node"]
"""Why slurm/train.sh has Slurm start a job again."""

MAX_IDLE_RUNS = 3
"""So many runs in a row that saved nothing are the last of their job; preempted ones do not count."""
REQUEUES_FILE = "logs/requeues.jsonl"
"""One line for each run that was to be started again, other than after preemption (CutRun)."""

_AFTER_SAVING = (EXIT_STOPPED, EXIT_TERMINATED, EXIT_INTERRUPTED)


@dataclass(frozen=True)
class CutRun:
    """A run that ended before the job was done, and not by preemption.

    Attributes:
        job: SLURM_JOB_ID, which a job keeps when it is started again.
        step: The newest checkpoint there was, or None.
        saved: Whether this run had saved it.
    """

    job: str
    step: int | None
    saved: bool


def find_job_dir(job_file: Path, job_dir: Path | None) -> Path | None:
    """The folder that `hpc-train train JOB.yaml --job-dir D` uses; None where the job file does not say."""
    if job_dir is not None:
        return job_dir
    try:
        value = read_yaml(job_file).value
    except UserError:
        return None
    name = value.get("name") if isinstance(value, dict) else None
    return Path("runs") / name if isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name) else None


def record_end(job_dir: Path | None, code: int, requeue: Requeue | None) -> int:
    """Notes in `job_dir` that the ranks have ended with `code` (EXIT_NOT_REQUEUED: stopped, and not requeued either).

    Args:
        requeue: Why the job is about to go back into the queue, or None if it is not.

    Returns:
        0; or EXIT_NOT_REQUEUED where it must not, since it makes no progress. That is printed, with what to do.

    Writes status.json and REQUEUES_FILE; nothing where there is no job-dir, and no error for what cannot be written.
    """
    if code == EXIT_BAD_INPUT:
        return 0  # the job-dir may be another job's
    if requeue not in (None, "preemption") and (problem := _count_run(job_dir, os.environ)) is not None:
        print(f"train.sh: {problem}", flush=True)
        _set_state(job_dir, "stopped", problem)
        return EXIT_NOT_REQUEUED
    if requeue is not None:
        _set_state(job_dir, "requeued", None)
    elif code == EXIT_NOT_REQUEUED:
        _set_state(job_dir, "stopped", "the job was stopped, and scontrol could not put it back into the queue")
    elif _state(job_dir) in ("running", "requeued"):
        ended, message = describe_end(code)
        _set_state(job_dir, ended, message, signal_name(code))
    return 0


def describe_end(code: int) -> tuple[str, str]:
    """The state of a job whose ranks ended with `code` and did not say how, and a sentence about it. Pure."""
    name = signal_name(code)
    message = f"the ranks ended with code {code}" + (f" (killed by {name})" if name else "")
    return ("stopped" if code in _AFTER_SAVING else "failed"), message


def signal_name(code: int) -> str | None:
    """The signal that an exit code of mpirun stands for ("SIGKILL" for 137), or None. Pure."""
    try:
        return signal.Signals(code - 128).name if code > 128 else None
    except ValueError:
        return None


def newest_step(job_dir: Path) -> int | None:
    """The step of the newest checkpoint, or None. None is read or verified."""
    try:
        names = os.listdir(job_dir / "checkpoints")
    except OSError:
        return None
    return max((step for name in names if (step := step_of(name)) is not None), default=None)


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


def _count_run(job_dir: Path | None, env: Any) -> str | None:
    """Adds this run to REQUEUES_FILE. Returns why the job should not be started again, or None."""
    job = str(env.get("SLURM_JOB_ID"))
    restarts = env.get("SLURM_RESTART_COUNT", "0")
    runs: list[CutRun] = []
    step = None
    if job_dir is not None and job_dir.is_dir():
        runs, step = _read_runs(job_dir, job), newest_step(job_dir)
        this = CutRun(job, step, _saved_since(job_dir, step, runs))
        runs.append(this)
        with suppress(OSError):
            (job_dir / REQUEUES_FILE).parent.mkdir(exist_ok=True)
            with open(job_dir / REQUEUES_FILE, "a") as file:
                file.write(json.dumps({**asdict(this), "time": time.time()}) + "\n")
    idle = idle_runs(runs, int(restarts) if restarts.isdecimal() else 0)
    if idle < MAX_IDLE_RUNS:
        return None
    newest = "no checkpoint" if step is None else f"no checkpoint newer than step {step}"
    return (
        f"not put back into the queue: {idle} runs in a row have saved {newest}; submit again with "
        "more time (--time), or have checkpoints saved more often (save_checkpoints_steps or _secs)"
    )


def _read_runs(job_dir: Path, job: str) -> list[CutRun]:
    try:
        lines = (job_dir / REQUEUES_FILE).read_text().splitlines()
    except OSError:
        return []
    runs = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # a line that a full disk has cut off
            run = json.loads(line)
            if run["job"] == job:
                runs.append(CutRun(job, run["step"], run["saved"]))
    return runs


def _saved_since(job_dir: Path, step: int | None, runs: Sequence[CutRun]) -> bool:
    """Whether the run that has just ended saved the checkpoint of `step`; `runs` are those before it."""
    if step is None:
        return False
    if runs:
        return runs[-1].step is None or step > runs[-1].step
    try:  # the first run of this job, which may go on from checkpoints of another
        written = (job_dir / "checkpoints" / checkpoint_name(step)).stat().st_mtime
        return bool(written >= float(read_status(job_dir).get("started", 0)))
    except (OSError, ValueError, TypeError):
        return True


def _state(job_dir: Path | None) -> str | None:
    return str(read_status(job_dir).get("state")) if job_dir is not None else None


def _set_state(job_dir: Path | None, state: str, message: str | None, signal_name: str | None = None) -> None:
    """Sets the state in status.json, and with a message the error; `signal_name` is that which killed the ranks."""
    if job_dir is None or not job_dir.is_dir():
        return
    fields = {**read_status(job_dir), "state": state, "updated": time.time()}
    if message is not None:
        fields["error"] = {"rank": None, "message": message} | ({"signal": signal_name} if signal_name else {})
    with suppress(OSError):  # a full or lost file system; the job's output says the same
        write_json(job_dir / STATUS_FILE, fields)
