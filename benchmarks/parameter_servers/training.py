"""The cases of training: throughput, one slow worker, time to a given loss, staleness, a job's server that waits."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from support.launch import TCP, here

from parameter_servers.jobs import Job, Told, run_job, watch_server
from parameter_servers.results import Group, Results
from parameter_servers.settings import BATCH, WORKERS, Settings
from parameter_servers.ways import ASYNC, BOUNDED, JOB, ONE_HOST_TCP, ONE_NODE, PLAIN_HOROVOD, PREFETCH, SLOW, SYNC

T = TypeVar("T")
Tell = Callable[[str], None]

LIMIT_SECS = 300.0
SLOWER = 3
"""A slow worker sleeps for so many steps of a fast one, after each of its own."""
USUAL_STEP_SECS = 0.012
TRAINING, SLOW_WORKER, TO_LOSS = (Group(what, ONE_NODE) for what in ("training", "slow worker", "time to loss"))

_ASYNC = {"strategy": "async", "parameter_servers": 1}
SYNC_JOB = Job(SYNC, WORKERS, {"strategy": "sync"}, batches_a_step=WORKERS)
ASYNC_JOB = Job(ASYNC, 1 + WORKERS, _ASYNC, batches_a_step=1)
PREFETCH_JOB = Job(PREFETCH, 1 + WORKERS, {**_ASYNC, "prefetch_parameters": True}, batches_a_step=1)
BOUNDED_JOB = Job(BOUNDED, 1 + WORKERS, {**_ASYNC, "max_staleness": 2}, batches_a_step=1)


def turns(ways: Sequence[T], passes: int) -> Iterator[T]:
    """All ways there, and back again: A B, then B A, then A B once more."""
    for number in range(passes):
        yield from ways if number % 2 == 0 else reversed(ways)


def measure_training(settings: Settings, folder: Path, results: Results, tell: Tell) -> None:
    """Throughput, and from the same jobs the time to a given loss."""
    how = settings.training
    jobs = (None, SYNC_JOB, ASYNC_JOB, PREFETCH_JOB)
    rates: defaultdict[str, list[float]] = defaultdict(list)
    told: defaultdict[str, list[Told]] = defaultdict(list)
    for job in turns(jobs, how.passes):
        if job is None:
            rates[PLAIN_HOROVOD].append(_plain_horovod(settings, folder))
            tell(f"{PLAIN_HOROVOD}: {rates[PLAIN_HOROVOD][-1]:,.0f} examples/s")
            continue
        found = run_job(folder, job, how.examples)
        told[job.way].append(found)
        rates[job.way].append(_rate(job, found, settings))
        tell(f"{job.way}: {rates[job.way][-1]:,.0f} examples/s, loss {found.losses[-1]:.3f}")
    for job in jobs:
        way, ranks = (PLAIN_HOROVOD, WORKERS) if job is None else (job.way, job.ranks)
        others = [other for other in (PLAIN_HOROVOD, SYNC) if other != way] if job is not None else []
        results.add(TRAINING, way, rates[way], "examples/s", ranks, others, {"batch": BATCH, "examples": how.examples})
    _add_staleness(results, told)
    for way, found_all in told.items():
        secs = [found.secs_to(how.loss) for found in found_all]
        reached = [s for s in secs if s is not None]
        if len(reached) < len(secs):
            results.left_out.append(f"{way}: not below a loss of {how.loss:g} after {how.examples:,} examples.")
        else:
            others = [SYNC] if way != SYNC and results.get(TO_LOSS, SYNC) else []
            ranks = WORKERS if way == SYNC else 1 + WORKERS
            results.add(TO_LOSS, way, reached, "s", ranks, others, {"loss": how.loss})


def _rate(job: Job, found: Told, settings: Settings) -> float:
    return found.rate(settings.training.warm_up_secs) * BATCH * job.batches_a_step


def _plain_horovod(settings: Settings, folder: Path) -> float:
    out = folder / "plain.json"
    how = settings.training
    numbers = ["--examples", str(how.examples), "--warm-up-secs", str(how.warm_up_secs)]
    program = ["-m", "parameter_servers.plain_horovod", "--folder", str(folder), "--out", str(out), *numbers]
    here()(WORKERS, program, folder, LIMIT_SECS)
    return float(json.loads(out.read_text())["examples_per_sec"])


def _add_staleness(results: Results, told: dict[str, list[Told]]) -> None:
    for way, found_all in told.items():
        counted: Counter[int] = sum((found.staleness for found in found_all), Counter())
        if counted:
            results.staleness[way] = counted


def measure_slow_worker(settings: Settings, folder: Path, results: Results, tell: Tell) -> None:
    """Each way with all workers alike, and with one that sleeps after each step."""
    how = settings.training
    sync = results.get(TRAINING, SYNC)
    step_secs = BATCH * WORKERS / sync.median if sync else USUAL_STEP_SECS
    millis = max(1, round(1e3 * SLOWER * step_secs))
    jobs = []
    for job in (BOUNDED_JOB,) if settings.quick else (SYNC_JOB, ASYNC_JOB, BOUNDED_JOB):
        jobs += [job, replace(job, way=slowed(job.way), delays={job.ranks - 1: millis})]
    rates: defaultdict[str, list[float]] = defaultdict(list)
    told: defaultdict[str, list[Told]] = defaultdict(list)
    for job in turns(jobs, how.slow_passes):
        found = run_job(folder, job, how.slow_examples)
        told[job.way].append(found)
        rates[job.way].append(_rate(job, found, settings))
        tell(f"{job.way}: {rates[job.way][-1]:,.0f} examples/s")
    for job in jobs:
        others = [job.way.removesuffix(slowed(""))] if job.delays else []
        config = {"batch": BATCH, "delay_ms": millis if job.delays else 0}
        results.add(SLOW_WORKER, job.way, rates[job.way], "examples/s", job.ranks, others, config)
    told.pop(ASYNC, None)  # as in measure_training, whose jobs are longer
    _add_staleness(results, told)


def slowed(way: str) -> str:
    """The name of `way` with a slow worker."""
    return f"{way}, {SLOW}"


def measure_idle_server(settings: Settings, folder: Path, results: Results) -> None:
    """The server of a job whose only worker sleeps."""
    secs = settings.training.watch_secs
    job = Job(ASYNC, 2, _ASYNC, batches_a_step=1, delays={1: round(1e3 * (secs + 3))})
    places = [(ONE_HOST_TCP, TCP)] if settings.quick else [(ONE_NODE, {}), (ONE_HOST_TCP, TCP)]
    for where, env in places:
        share = watch_server(folder, job, secs, env)
        results.add(Group("idle server", where, "", 1), JOB, [share], "of a core", 2)
