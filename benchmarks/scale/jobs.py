"""Runs one job of the package on so many ranks, and reads what it told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from support.launch import Launch

from hpc_train.telemetry.progress import GAP, SHARES
from scale.hook import ENOUGH, PLAN

BENCHMARK = "scaling"
SYNC, ASYNC, DEDICATED = "sync", "async", "dedicated chief"
WAYS = {"sync": SYNC, "async": ASYNC, "dedicated": DEDICATED}
"""By their names on the command line."""
WEAK, STRONG = "weak", "strong"
MEMORY, HDF5, OWN = "memory", "hdf5", "own job"
RECORD_STEPS = 20
"""Between two records of a job, which tell where its time went."""
SHARDS = 4
SHARD_ROWS = 4096
"""Of the HDF5 data, or as many as 256 MB hold."""
SHARD_BYTES = 256 * 10**6


@dataclass(frozen=True)
class Settings:
    """Of each job.

    Attributes:
        secs: Measured in each, after warm_up_steps and warm_up_secs. least_steps: at least so many.
        passes: Over all points of a curve: there, back again, and so on; one repeat each.
        limit_secs: For one job.
    """

    secs: float
    least_steps: int
    warm_up_steps: int
    warm_up_secs: float
    passes: int
    limit_secs: float


FULL = Settings(secs=4.0, least_steps=5, warm_up_steps=3, warm_up_secs=1.5, passes=4, limit_secs=600.0)
QUICK = Settings(secs=0.3, least_steps=3, warm_up_steps=2, warm_up_secs=0.0, passes=1, limit_secs=180.0)


OTHERWISE: Mapping[str, str] = {
    "train.hooks": "[scale.hook:make_hooks]",
    "train.max_steps": "10000000",
    "train.early_stopping": "{}",
    "eval.steps": "1",
    "eval.start_delay_secs": "1000000",
    "eval.exporters": "{}",
    "evals": "{}",
    "run.best_metric": "loss",
    "run.save_summary_steps": str(RECORD_STEPS),
}
"""Of a user's own job: it neither evaluates, but for a batch at its end, nor exports."""
RUN: Mapping[str, dict[str, str | int]] = {
    SYNC: {"strategy": "sync", "chief": "train"},
    ASYNC: {"strategy": "async", "parameter_servers": 1},
    DEDICATED: {"strategy": "sync", "chief": "dedicated"},
}
"""What `run:` of a job says of each way."""
HALF = ("fp16", "bf16")
"""Values of `compression:` with which gradients are sent in half the bytes."""
PARTS = (*SHARES, "other")
"""Of a step's time. Beside them, GAP is the part in which the device waits for the host."""


@dataclass(frozen=True)
class Case:
    """A job.

    Attributes:
        workload: A name of WORKLOADS; a user's job file with data = OWN.
        workers: Ranks that train; a dedicated chief, or a parameter server, comes on top.
        batch: Rows a rank and step; None: as the user's job has it.
        emulate_step_ms: The model is an emulated device's, whose steps take so long and have gradients of
            gradient_bytes.
        steps_in_flight: See RunConfig.
        run: More of `run:`, as pairs.
        stand_in: A second device of the processor is taken for a GPU.
    """

    workload: str
    data: str
    way: str
    workers: int
    batch: int | None
    emulate_step_ms: float | None = None
    gradient_bytes: int = 0
    steps_in_flight: int | None = None
    run: tuple[tuple[str, str], ...] = ()
    stand_in: bool = False

    @property
    def ranks(self) -> int:
        """Processes that it takes."""
        return self.workers + (self.way != SYNC)

    @property
    def words(self) -> str:
        return in_words(self.way, self.workers)


def in_words(way: str, workers: int) -> str:
    """A point of a curve."""
    return f"{way}, {workers} worker{'s' if workers > 1 else ''}"


@dataclass(frozen=True)
class Run:
    """What a job told.

    Attributes:
        rates: Examples a second of each rank that trains. step_secs: of the first of them, step by step.
        shares: Where their time went, 0 to 1, mean of the ranks; what is not known is left out.
        gradient_bytes: Of a rank and step, as they are sent.
        device, nccl: What they trained on, and whether Horovod has NCCL.
        gpu_memory_bytes: The most that a rank held. gpu_use: mean utilisation, 0 to 1.
        busy: Part of the time in which an emulated device works, 0 to 1, mean of the ranks; None: none is emulated.
    """

    rates: Sequence[float]
    step_secs: Sequence[float]
    shares: Mapping[str, float]
    gradient_bytes: int
    device: str
    nccl: bool
    gpu_memory_bytes: int | None
    gpu_use: float | None = None
    busy: float | None = None

    @property
    def total(self) -> float:
        """Examples a second of all."""
        return sum(self.rates)


def run_case(folder: Path, case: Case, settings: Settings, launch: Launch) -> Run:
    """Runs a job in `folder`, which has the data, and measures it.

    Raises:
        RuntimeError: It failed, or took longer than it may; with what its ranks printed last.
    """
    job_dir, plan = folder / "run", folder / "plan.json"
    shutil.rmtree(job_dir, ignore_errors=True)
    for old in (*folder.glob("rank-*.json"), *folder.glob(f"{ENOUGH}*")):
        old.unlink()
    ranks = case.workers if case.way == ASYNC else 1
    plan.write_text(json.dumps({**asdict(settings), "ranks": ranks}))
    launch(case.ranks, arguments(folder, case, job_dir), folder, settings.limit_secs)
    told = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    records = [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()]
    if case.data != OWN:
        return read_run(told, records, case.batch or 1)
    job = yaml.safe_load((job_dir / "job.yaml").read_text())
    run = read_run(told, records, case.batch or job["data"]["train"]["batch_size"])
    compressed = case.way != ASYNC and job["run"].get("compression") in HALF
    return replace(run, gradient_bytes=run.gradient_bytes // 2) if compressed else run


def arguments(folder: Path, case: Case, job_dir: Path) -> list[str]:
    """What Python is to run on each rank; writes the case where program.py reads it."""
    if case.data == OWN:
        changes = {
            **OTHERWISE,
            **{f"run.{key}": f"{value}" for key, value in _run_of(case).items()},
            **({"data.train.batch_size": str(case.batch)} if case.batch else {}),
        }
        settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        return ["-m", "hpc_train", "train", case.workload, "--job-dir", str(job_dir), *settings]
    told = {
        **asdict(case),
        "run": _run_of(case),
        "job_dir": str(job_dir),
        "record_steps": RECORD_STEPS,
        "shards": str(folder / case.workload / "train-*.h5") if case.data == HDF5 else None,
    }
    path = folder / "case.json"
    path.write_text(json.dumps(told))
    return ["-m", "scale.program", str(path)]


def _run_of(case: Case) -> dict[str, str | int]:
    flight = {} if case.steps_in_flight is None else {"steps_in_flight": case.steps_in_flight}
    return {**RUN[case.way], **flight, **dict(case.run)}


def plan_variable(folder: Path) -> dict[str, str]:
    """What the ranks of jobs in `folder` need in their environment."""
    return {PLAN: str(folder / "plan.json")}


def read_run(told: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]], batch: int) -> Run:
    """From what each rank's hook wrote, and the records of metrics.jsonl. Pure.

    Raises:
        RuntimeError: No rank measured two steps.
    """
    ranks = sorted(told, key=lambda rank: rank["rank"])
    measured = [rank for rank in ranks if len(rank["ends"]) > 1]
    if not measured:
        raise RuntimeError("the job ended before two steps were measured")
    rates = [batch * (len(r["ends"]) - 1) / (r["ends"][-1] - r["ends"][0]) for r in measured]
    first = measured[0]
    begun = first["ends"][0] + first["wall"]
    memory = [rank["gpu_memory_bytes"] for rank in measured if "gpu_memory_bytes" in rank]
    use = [rank["gpu_use"] for rank in measured if rank.get("gpu_use") is not None]
    busy = [rank["busy"] for rank in measured if rank.get("busy") is not None]
    return Run(
        rates,
        np.diff(first["ends"]).tolist(),
        _shares(records, begun),
        first["gradient_bytes"],
        first["device"],
        any(rank["nccl"] for rank in measured),
        max(memory, default=None),
        float(np.mean(use)) if use else None,
        float(np.mean(busy)) if busy else None,
    )


def _shares(records: Sequence[Mapping[str, Any]], begun: float) -> dict[str, float]:
    """Means of what records told after `begun` (a second of the clock), or of the last one."""
    train = [record["by_rank"] for record in records if record["kind"] == "train" and record.get("by_rank")]
    times = [record["time"] for record in records if record["kind"] == "train" and record.get("by_rank")]
    after = [by_rank for by_rank, when in zip(train, times, strict=True) if when >= begun] or train[-1:]
    found: dict[str, float] = {}
    for part in (*PARTS, GAP):
        known = [share for by_rank in after for share in by_rank.get(part, []) if share is not None]
        if known:
            found[part] = float(np.mean(known))
    return found
