"""The curves: all points of one, in turns there and back, and the records that they become."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from support.launch import Launch, nodes
from support.records import Record, Sample, records_of
from support.results import Results
from support.usage import UsageError, tell

from hpc_train.data.memory import available_bytes
from scale.jobs import ASYNC, BENCHMARK, HDF5, STRONG, SYNC, Case, Run, Settings, in_words, run_case
from scale.workloads import PROCESS_BYTES, WORKLOADS, emulated_bytes, write_data

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Curve:
    """One workload with one kind of scaling, and all ways and numbers of workers that are compared.

    Attributes:
        kind: WEAK: `batch` is each rank's. STRONG: it is that of all ranks together, and divided among them.
        title: Of the workload.
    """

    kind: str
    workload: str
    title: str
    data: str
    batch: int
    points: tuple[tuple[str, int], ...]
    emulate_step_ms: float | None = None
    gradient_bytes: int = 0
    steps_in_flight: int | None = None
    run: tuple[tuple[str, str], ...] = ()

    @property
    def unit(self) -> str:
        """Its name in the results."""
        emulated = "" if self.emulate_step_ms is None else f", emulated {self.emulate_step_ms:g} ms"
        nbytes = f" {self.gradient_bytes / 1e6:g} MB" if emulated else ""
        more = "".join(f", {key} by {value}" for key, value in self.run)
        return f"{self.kind} scaling, {self.title}{emulated}{nbytes}, {self.data}{more}"

    def cases(self) -> list[Case]:
        """All of them, one rank of sync first: the others are compared with it."""
        points = dict.fromkeys([(SYNC, 1), *self.points])
        return [
            Case(
                self.workload,
                self.data,
                way,
                workers,
                self.batch // workers if self.kind == STRONG else self.batch,
                self.emulate_step_ms,
                self.gradient_bytes,
                self.steps_in_flight,
                self.run,
            )
            for way, workers in points
            if self._divides(workers)
        ]

    def indivisible(self) -> Iterator[tuple[str, str]]:
        """Points of strong scaling that cannot be had, and why."""
        for way, workers in dict.fromkeys(self.points):
            if not self._divides(workers):
                why = f"{self.batch} rows cannot be shared out among {workers} workers; give another --batch"
                yield f"{self.unit}, {in_words(way, workers)}", why

    def _divides(self, workers: int) -> bool:
        return self.kind != STRONG or self.batch % workers == 0


def measure_all(
    curves: Iterable[Curve], settings: Settings, folder: Path, launch: Launch, results: Results, on_gpu: bool = False
) -> None:
    """Measures curves; of one whose one rank alone fails nothing is kept, of another point that fails the rest is.

    Raises:
        UsageError: It is to train on GPUs (`on_gpu`), and TensorFlow uses none.
    """

    def run(curve: Curve, case: Case) -> dict[str, Any]:
        measured = run_case(folder, case, settings, launch)
        if on_gpu and measured.device == "CPU":
            raise UsageError(
                "--gpu: there are GPUs, but TensorFlow uses none: install tensorflow[and-cuda], not tensorflow-cpu, "
                "or leave --gpu out"
            )
        tell(f"{curve.unit}, {case.words}: {measured.total:,.1f} examples/s")
        return asdict(measured)

    def measure(curve: Curve) -> list[Record]:
        if curve.data == HDF5:
            least = 2 * max(case.workers * (case.batch or 1) for case in curve.cases())
            write_data(folder, WORKLOADS[curve.workload], least)
        cases = {case.words: case for case in curve.cases()}
        ways = {words: partial(run, curve, case) for words, case in cases.items()}
        measured = results.turns(curve.unit, ways, settings.passes)
        return list(records(curve, {cases[words]: [Run(**one) for one in own] for words, own in measured.items()}))

    for curve in curves:
        for what, why in curve.indivisible():
            results.leave_out(what, why)
            results.failed = True
        results.add(curve.unit, results.attempt(curve.unit, partial(measure, curve)) or ())


def records(curve: Curve, found: Mapping[Case, Sequence[Run]]) -> Iterator[Record]:
    """A record for each case; its ratio is the efficiency: against as many times one rank alone, which has none. Pure.

    The ratio is the median of those of the passes, each with the ranks of the same pass; `ratio_spread` has the lowest
    and the highest of them.
    """
    first = curve.cases()[0]
    alone = [run.total for run in found[first]]
    for case, runs in found.items():
        totals = [run.total for run in runs]
        as_many = [case.workers * one for one in alone]
        efficiencies = [own / other for own, other in zip(totals, as_many, strict=True)]
        middle = runs[totals.index(sorted(totals)[len(totals) // 2])]
        steps = np.quantile(np.concatenate([run.step_secs for run in runs]), QUANTILES)
        config = {
            **{name: getattr(curve, name) for name in ("kind", "workload", "title", "data")},
            **{name: getattr(case, name) for name in ("way", "workers", "batch")},
            "emulated_step_ms": case.emulate_step_ms,
            "steps_in_flight": case.steps_in_flight,
            **dict(case.run),
            "ratio_spread": [min(efficiencies), max(efficiencies)],
            "examples_per_sec_by_rank": list(middle.rates),
            "shares": dict(middle.shares),
            "step_secs": dict(zip(map(str, QUANTILES), steps.tolist(), strict=True)),
            **_bytes(case, middle),
            **{name: getattr(middle, name) for name in ("device", "nccl", "gpu_memory_bytes", "gpu_use", "busy")},
        }
        against = {} if case == first else {f"{case.workers} x one rank": as_many}
        sample = Sample(f"{curve.unit}, {case.words}", totals, against, case.ranks, config)
        yield from records_of(BENCHMARK, "examples/s", [sample])


def _bytes(case: Case, run: Run) -> dict[str, Any]:
    """What a worker sends in a step, computed: a ring-allreduce 2(n-1)/n of its gradients, an asynchronous one all.

    As many bytes reach it: the sums, or the parameters.
    """
    nbytes = run.gradient_bytes
    sent = nbytes if case.way == ASYNC else round(2 * (case.workers - 1) / case.workers * nbytes)
    return {"gradient_bytes": nbytes, "sent_bytes_a_step": sent}


def check_room(curve: Curve, gpus: Sequence[Mapping[str, Any]], left_bytes: float | None = None) -> str | None:
    """Why the ranks of `curve` do not fit, as a sentence, or None. Of a user's own job nothing is known."""
    workload = WORKLOADS.get(curve.workload)
    cases = curve.cases()
    if workload is None:
        needed = max(-(-case.ranks // nodes()) * emulated_bytes(curve.gradient_bytes) for case in cases)
        return _too_much(needed, left_bytes, "--gradient-mb") if curve.emulate_step_ms is not None else None
    if gpus:
        needed = max(workload.rank_bytes(case.batch or 1) - PROCESS_BYTES for case in cases)
        there = min((float(gpu["memory_mib"]) for gpu in gpus if gpu["memory_mib"]), default=math.inf) * (1 << 20)
        if needed > there:
            return f"a rank needs about {needed / 1e9:.0f} GB of GPU memory, there are {there / 1e9:.0f}; try --batch"
        return None
    needed = max(-(-case.ranks // nodes()) * workload.rank_bytes(case.batch or 1) for case in cases)
    return _too_much(needed, left_bytes, "--batch")


def _too_much(needed: float, left_bytes: float | None, option: str) -> str | None:
    there = left_bytes if left_bytes is not None else available_bytes()
    if needed <= there:
        return None
    return f"the ranks of a node need about {needed / 1e9:.0f} GB, {there / 1e9:.0f} are free; try {option} or --ranks"
