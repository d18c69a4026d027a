"""Your own job, as a benchmark trains it: what of it is changed, and what it tells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.launch import Launch
from support.usage import UsageError

from acceptance.clock import CLOCK, WANTED
from acceptance.metric import Wanted

OTHERWISE: Mapping[str, str] = {
    "train.hooks": "[acceptance.clock:make_hooks]",
    "train.early_stopping": "{}",
    "eval.start_delay_secs": "0",
    "eval.throttle_secs": "0",
    "eval.exporters": "{}",
    "evals": "{}",
    "run.strategy": "sync",
    "run.chief": "train",
    "run.save_checkpoints_secs": "null",
    "run.report": "false",
}
"""Of the job: without hooks, early stopping, exports and further evaluation sets of its own."""


@dataclass(frozen=True)
class OwnJob:
    """A job file, read.

    Attributes:
        rate: The learning rate at `rate_key`; None where the job has no such number.
        function: Of the model, with an absolute path.
        best_metric, best_mode: Of `run:`.
    """

    path: Path
    rate_key: str
    rate: float | None
    batch: int
    max_steps: int
    function: str
    best_metric: str
    best_mode: str

    def changed_rate(self, rate: float) -> dict[str, str]:
        """What sets the learning rate."""
        return {self.rate_key: yaml_number(rate)}


def read_job(path: Path, rate_key: str) -> OwnJob:
    """Reads a job file.

    Raises:
        UsageError: It is none, or has mistakes; or it sets no number of steps.
    """
    from hpc_train.config.job import load_job
    from hpc_train.errors import UserError

    try:
        job = load_job(path)
    except UserError as error:
        raise UsageError(f"--job: {error}") from None
    if job.train.max_steps is None:
        raise UsageError(f"--job: {path} sets no train.max_steps, which bounds each run; set it, in a copy of the job")
    rate: Any = job.model_dump(mode="json")
    for name in rate_key.split("."):
        rate = rate.get(name) if isinstance(rate, dict) else None
    known = isinstance(rate, int | float) and not isinstance(rate, bool)
    return OwnJob(
        path.resolve(),
        rate_key,
        float(rate) if known else None,
        job.data.train.batch_size,
        job.train.max_steps,
        job.model,
        job.run.best_metric or "loss",
        job.run.best_mode if job.run.best_metric else "min",
    )


def check_rate(job: OwnJob) -> None:
    """Sees that the learning rate can be changed.

    Raises:
        UsageError: The job has no such key, or no number there.
    """
    if job.rate is None:
        raise UsageError(
            f"--rate: {job.path.name} has no number at {job.rate_key}, so its learning rate cannot be scaled; let the "
            "model function take it from params and name that key, as in --rate params.learning_rate, or leave the "
            "part accuracy out by --parts"
        )


def yaml_number(number: float) -> str:
    """As YAML reads it as a number: 1.0e-05, not 1e-05, which is a text there."""
    mantissa, e, exponent = repr(float(number)).partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}"


def run_job(
    job: OwnJob,
    ranks: int,
    folder: Path,
    launch: Launch,
    changes: Mapping[str, str],
    limit_secs: float,
    wanted: Wanted | None = None,
) -> dict[str, Any]:
    """Trains on so many ranks; what Clock wrote.

    Args:
        folder: Of the job-dir. launch: whose environment has clock_variable(folder). wanted: ends the job.

    Raises:
        RuntimeError: It failed, or took longer than it may.
    """
    out, job_dir = folder / "clock.json", folder / "own-run"
    shutil.rmtree(job_dir, ignore_errors=True)
    out.unlink(missing_ok=True)
    (folder / WANTED).unlink(missing_ok=True)
    if wanted is not None:
        (folder / WANTED).write_text(json.dumps(asdict(wanted)))
    launch(ranks, arguments(job, job_dir, changes), folder, limit_secs)
    told: dict[str, Any] = json.loads(out.read_text())
    shutil.rmtree(job_dir, ignore_errors=True)
    return told


def arguments(job: OwnJob, job_dir: Path, changes: Mapping[str, str]) -> Sequence[str]:
    """What Python is to run on each rank."""
    settings = [word for key, value in {**OTHERWISE, **changes}.items() for word in ("--set", f"{key}={value}")]
    return ["-m", "hpc_train", "train", str(job.path), "--job-dir", str(job_dir), *settings]


def clock_variable(folder: Path) -> dict[str, str]:
    """What the ranks of jobs in `folder` need in their environment."""
    return {CLOCK: str(folder / "clock.json")}
