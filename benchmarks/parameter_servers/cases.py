"""The cases: bandwidth of push and pull, training, one slow worker, time to a given loss, a server that waits."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from peers.jobs import job_file as peers_job
from peers.measurement import read_measurements
from peers.models import MLP
from support.launch import NO_CMA, TCP, Launch, Ranks, here, make_cluster, process_secs, slurm_missing, two_nodes
from support.records import Found, Record, Sample, records_of
from support.results import Results
from support.usage import tell

from parameter_servers import settings as of
from parameter_servers.settings import (
    BATCH,
    LEARNING_RATE,
    MEMCPY,
    ONE_NODE,
    OURS,
    SEND_RECV,
    WORKERS,
    Jobs,
    Settings,
    Transfers,
)

RECORD_EXAMPLES = 20 * BATCH * WORKERS
"""Between two records in metrics.jsonl."""
LIMIT_SECS, START_SECS = 300.0, 60.0


@dataclass(frozen=True)
class Job:
    """A way to train.

    Attributes:
        run: Of the job file. batches_a_step: that one update is made of. delays: milliseconds that a rank
            sleeps after each step, by rank.
    """

    way: str
    ranks: int
    run: Mapping[str, object]
    batches_a_step: int
    delays: Mapping[int, int] = field(default_factory=dict)


def job_file(job: Job, examples: int) -> dict[str, Any]:
    """The job file for training on so many examples."""
    of_a_step = BATCH * job.batches_a_step
    every = max(1, min(RECORD_EXAMPLES, examples // 4) // of_a_step)
    found = peers_job(MLP, {"save_summary_steps": every, **job.run})
    found["params"]["learning_rate"] = LEARNING_RATE * job.batches_a_step
    found["train"] = {"max_steps": examples // of_a_step}
    return found


def arguments(folder: Path, job: Job, examples: int) -> tuple[list[str], Path]:
    """Writes the job file; returns what Python is to run, and the job-dir, which is empty."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job_file(job, examples)))
    job_dir = folder / "run"
    shutil.rmtree(job_dir, ignore_errors=True)
    delays = [word for rank, millis in job.delays.items() for word in ("--debug-delay", f"{rank}:{millis}")]
    return ["-m", "hpc_train", "train", "job.yaml", "--job-dir", str(job_dir), *delays], job_dir


def run_job(folder: Path, job: Job, examples: int, how: Jobs) -> dict[str, Any]:
    """Trains on so many examples; what `read_metrics` gives."""
    program, job_dir = arguments(folder, job, examples)
    here()(job.ranks, program, folder, LIMIT_SECS)
    records = [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()]
    return read_metrics(records, BATCH * job.batches_a_step, how.warm_up_secs, how.loss)


def read_metrics(
    records: Sequence[Mapping[str, Any]], examples: int, warm_up_secs: float, loss: float
) -> dict[str, Any]:
    """From the records of metrics.jsonl of a job whose steps have so many `examples`. Pure.

    Returns:
        `rate`: examples a second, from the first record after the warm-up to the last. `secs_to_loss`: when the mean
        of three records' losses first fell below `loss`, from the first record on; None: never. `staleness`:
        gradients by staleness.

    Raises:
        RuntimeError: Training was over before the warm-up was.
    """
    train = [record for record in records if record["kind"] == "train"]
    secs = [record["time"] - train[0]["time"] for record in train]
    first = next((i for i, since in enumerate(secs) if since >= warm_up_secs), len(secs))
    if first >= len(secs) - 1:
        raise RuntimeError(f"{secs[-1]:.1f} s of training are too short for {warm_up_secs} s of warm-up")
    rate = examples * (train[-1]["step"] - train[first]["step"]) / (secs[-1] - secs[first])
    below = np.flatnonzero(np.convolve([record["loss"] for record in train], np.full(3, 1 / 3), "valid") < loss)
    reached = secs[int(below[0]) + 2] if below.size else None
    return {"rate": rate, "secs_to_loss": reached, "staleness": train[-1].get("staleness", {})}


def watch_server(folder: Path, job: Job, secs: float, env: Mapping[str, str]) -> float:
    """The share of a core that rank 0 takes once the job has begun to train, for so long."""
    program, job_dir = arguments(folder, job, 10**6)
    status = job_dir / "status.json"
    with Ranks(job.ranks, program, folder, env) as started:
        end = time.monotonic() + START_SECS
        while not status.exists() or not json.loads(status.read_text()).get("step"):
            if not started.running:
                started.wait(0)
                raise RuntimeError("a job that was to be watched has ended")
            if time.monotonic() > end:
                raise RuntimeError(f"a job that was to be watched has not begun to train after {START_SECS:.0f} s")
            time.sleep(0.1)
        pid = json.loads(status.read_text())["pid"]
        time.sleep(1.0)
        cpu, wall = process_secs(pid), time.perf_counter()
        time.sleep(secs)
        return (process_secs(pid) - cpu) / (time.perf_counter() - wall)


SERVERS = (1, 2)
SLOWER = 3
"""A slow worker sleeps for so many steps of a fast one, after each of its own."""
USUAL_STEP_SECS = 0.012

_ASYNC = {"strategy": "async", "parameter_servers": 1}
SYNC_JOB = Job(of.SYNC, WORKERS, {"strategy": "sync"}, batches_a_step=WORKERS)
ASYNC_JOB = Job(of.ASYNC, 1 + WORKERS, _ASYNC, batches_a_step=1)
PREFETCH_JOB = Job(of.PREFETCH, 1 + WORKERS, {**_ASYNC, "prefetch_parameters": True}, batches_a_step=1)
BOUNDED_JOB = Job(of.BOUNDED, 1 + WORKERS, {**_ASYNC, "max_staleness": 2}, batches_a_step=1)


@dataclass(frozen=True)
class Group:
    """Ways that ran in the same turns: `what`, `where`, and for transfers the parameters' size and so many servers."""

    what: str
    where: str = ONE_NODE
    size: str = ""
    servers: int = 0

    def __str__(self) -> str:
        counted = {0: "", 1: "1 server"}.get(self.servers, f"{self.servers} servers")
        return ", ".join(part for part in (self.what, self.where, self.size, counted) if part)

    def records(
        self,
        unit: str,
        values: Mapping[str, Sequence[float]],
        compared: Mapping[str, Sequence[str]],
        ranks: Mapping[str, int],
        config: Mapping[str, Any],
        own_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Iterator[Record]:
        """Of all ways, each compared with those that `compared` names; `own_config`: more of a way's config."""
        for way, own in values.items():
            against = {other: values[other] for other in compared.get(way, ()) if other in values}
            about = {**asdict(self), "way": way, **config, **(own_config or {}).get(way, {})}
            yield from records_of(of.BENCHMARK, unit, [Sample(f"{self}, {way}", own, against, ranks[way], about)])


def measure_node(settings: Settings, folder: Path, results: Results) -> None:
    """On one node, with nothing but the bytes; against Send/Recv as MPI does it by itself, and without CMA."""
    for servers in SERVERS:
        _transfers(here(), Group(of.TRANSFER, servers=servers), settings.node, folder, results)
    without = Group(of.TRANSFER, of.WITHOUT_CMA, servers=1)
    _transfers(here(NO_CMA), without, replace(settings.node, rests=0), folder, results)


def measure_optimizer(settings: Settings, folder: Path, results: Results) -> None:
    """On one node, the servers applying SGD with momentum."""
    for servers in SERVERS[-1:] if settings.quick else SERVERS:
        _transfers(here(), Group(of.OPTIMIZER, servers=servers), settings.optimizer, folder, results)


def measure_tcp(settings: Settings, folder: Path, results: Results) -> None:
    """Over TCP, between two nodes of a private Slurm, and between processes of this one."""
    reason = slurm_missing()
    if reason is None:
        with make_cluster() as cluster:
            for servers in SERVERS:
                own = Group(of.TRANSFER, of.TWO_HOSTS, servers=servers)
                _transfers(two_nodes(cluster), own, settings.tcp, folder, results)
    else:
        results.leave_out(of.TWO_HOSTS, reason)
    _transfers(here(TCP), Group(of.TRANSFER, of.ONE_HOST_TCP, servers=1), settings.tcp, folder, results)


def _transfers(launch: Launch, group: Group, how: Transfers, folder: Path, results: Results) -> None:
    plain = group.what == of.TRANSFER
    numbers = {"run-bytes": how.run_bytes, "rounds": how.rounds, "rest-secs": how.rest_secs, "rests": how.rests}
    out = folder / "transfers.json"
    words = [
        word for name, number in {"servers": group.servers, **numbers}.items() for word in (f"--{name}", f"{number}")
    ]
    words += ["--optimizer", "none" if plain else "sgd", "--out", str(out)]
    words += ["--nbytes", *(f"{of.SIZES[size]}" for size in how.sizes)]

    def run() -> Any:
        launch(group.servers + 1, ["-m", "parameter_servers.transfer_program", *words], folder, LIMIT_SECS)
        measured = json.loads(out.read_text())
        if any(one["shared"] != (group.where in (ONE_NODE, of.WITHOUT_CMA)) for one in measured):
            raise RuntimeError(f"{group.where}: memory is shared where it should not be, or is not where it should")
        return measured

    measured = results.attempt(f"{group}", lambda: results.once(f"{group}", run)) or []
    ranks, compared = group.servers + 1, {OURS: (MEMCPY, SEND_RECV if plain else of.APPLIED)}
    for size, found in zip(how.sizes, measured, strict=bool(measured)):
        values = {way: [rate / 1e9 for rate in rates["per_sec"]] for way, rates in found["rates"].items()}
        config = {"bytes": of.SIZES[size], "optimizer": "none" if plain else "sgd"}
        own = replace(group, size=size)
        results.add(f"{own}", own.records("GB/s", values, compared, dict.fromkeys(values, ranks), config))
    if rests := [share for found in measured for share in found["rests"]]:
        idle = replace(group, what=of.IDLE)
        results.add(f"{idle}", idle.records("of a core", {of.BARE: rests}, {}, {of.BARE: ranks}, {}))


def measure_training(settings: Settings, folder: Path, results: Results) -> None:
    """Throughput, and from the same jobs the time to a given loss, and the staleness."""
    how, jobs = settings.training, (SYNC_JOB, ASYNC_JOB, PREFETCH_JOB)
    ways: dict[str, Callable[[], Any]] = {of.PLAIN_HOROVOD: partial(_plain_horovod, settings, folder)}
    ways |= {job.way: partial(_job, folder, job, how.examples, settings) for job in jobs}
    measured = results.attempt(of.TRAINING, lambda: results.turns(of.TRAINING, ways, how.passes)) or {}
    ranks = {of.PLAIN_HOROVOD: WORKERS, **{job.way: job.ranks for job in jobs}}
    config = {"batch": BATCH, "examples": how.examples}
    compared = {
        way: [other for other in (of.PLAIN_HOROVOD, of.SYNC) if other != way] for way in ways if way != of.PLAIN_HOROVOD
    }
    results.add(
        of.TRAINING,
        Group(of.TRAINING).records("examples/s", _rates(measured), compared, ranks, config, _staleness(measured)),
    )
    secs = {way: [one["secs_to_loss"] for one in runs] for way, runs in measured.items() if way != of.PLAIN_HOROVOD}
    for way in [way for way, found in secs.items() if None in found]:
        del secs[way]
        results.leave_out(f"{of.TO_LOSS}, {way}", f"not below a loss of {how.loss:g} after {how.examples:,} examples")
    compared = {way: [of.SYNC] for way in secs if way != of.SYNC}
    results.add(of.TO_LOSS, Group(of.TO_LOSS).records("s", secs, compared, ranks, {"loss": how.loss}))


def _job(folder: Path, job: Job, examples: int, settings: Settings) -> dict[str, Any]:
    found = run_job(folder, job, examples, settings.training)
    tell(f"{job.way}: {found['rate']:,.0f} examples/s")
    return found


def _rates(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    return {way: [one["rate"] for one in runs] for way, runs in measured.items()}


def _staleness(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """By way, gradients of all runs by staleness."""
    summed = {
        way: sum((Counter(one.get("staleness", {})) for one in runs), Counter()) for way, runs in measured.items()
    }
    return {way: {"staleness": dict(counted)} for way, counted in summed.items() if counted}


def _plain_horovod(settings: Settings, folder: Path) -> dict[str, Any]:
    how, out = settings.training, folder / "plain"
    out.mkdir(exist_ok=True)
    warm_up, steps = round(how.warm_up_secs / USUAL_STEP_SECS), how.examples // (BATCH * WORKERS)
    words = ["--model", MLP, "--folder", str(folder), "--out", str(out)]
    words += ["--warm-up", f"{warm_up}", "--steps", f"{max(1, steps - warm_up)}"]
    here()(WORKERS, ["-m", "peers.plain_program", *words], folder, LIMIT_SECS)
    rate = read_measurements(out / "rank-0.json")[0].rate
    tell(f"{of.PLAIN_HOROVOD}: {rate:,.0f} examples/s")
    return {"rate": rate}


def measure_slow_worker(settings: Settings, folder: Path, results: Results) -> None:
    """Each way with all workers alike, and with one that sleeps after each step."""
    how = settings.training
    sync = Found(results.records).one(what=of.TRAINING, way=of.SYNC)
    millis = max(1, round(1e3 * SLOWER * (BATCH * WORKERS / sync.value if sync else USUAL_STEP_SECS)))
    jobs = {}
    for job in (BOUNDED_JOB,) if settings.quick else (SYNC_JOB, ASYNC_JOB, BOUNDED_JOB):
        slow = replace(job, way=slowed(job.way), delays={job.ranks - 1: millis})
        jobs |= {job.way: job, slow.way: slow}
    ways = {way: partial(_job, folder, job, how.slow_examples, settings) for way, job in jobs.items()}
    measured = results.attempt(of.SLOW_WORKER, lambda: results.turns(of.SLOW_WORKER, ways, how.slow_passes)) or {}
    compared = {slowed(way): [way] for way in jobs}
    ranks = {way: job.ranks for way, job in jobs.items()}
    config = {"batch": BATCH, "delay_ms": millis}
    results.add(
        of.SLOW_WORKER,
        Group(of.SLOW_WORKER).records("examples/s", _rates(measured), compared, ranks, config, _staleness(measured)),
    )


def slowed(way: str) -> str:
    """The name of `way` with a slow worker."""
    return f"{way}, {of.SLOW}"


def measure_idle_server(settings: Settings, folder: Path, results: Results) -> None:
    """The server of a job whose only worker sleeps."""
    secs = settings.training.watch_secs
    job = Job(of.ASYNC, 2, _ASYNC, batches_a_step=1, delays={1: round(1e3 * (secs + 3))})
    for where, env in [(of.ONE_HOST_TCP, TCP)] if settings.quick else [(ONE_NODE, {}), (of.ONE_HOST_TCP, TCP)]:
        group = Group(of.IDLE, where, servers=1)
        share = results.attempt(f"{group}, {of.JOB}", partial(watch_server, folder, job, secs, env))
        if share is not None:
            results.add(f"{group}, {of.JOB}", group.records("of a core", {of.JOB: [share]}, {}, {of.JOB: 2}, {}))


CASES: Mapping[str, Callable[[Settings, Path, Results], None]] = {
    "node": measure_node,
    "optimizer": measure_optimizer,
    "tcp": measure_tcp,
    "training": measure_training,
    "slow": measure_slow_worker,
    "idle": measure_idle_server,
}
"""By their names on the command line."""
