"""The curves: all points of one, in turns there and back, and the records that they become."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from support.failures import in_short
from support.records import Record

from scale.jobs import Case, Run, in_words
from scale.journal import Journal
from scale.settings import ASYNC, BENCHMARK, STRONG, SYNC

Measure = Callable[[Case], Run]
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

    @property
    def unit(self) -> str:
        """Its name in the results."""
        emulated = "" if self.emulate_step_ms is None else f", emulated {self.emulate_step_ms:g} ms"
        nbytes = f" {self.gradient_bytes / 1e6:g} MB" if emulated else ""
        return f"{self.kind} scaling, {self.title}{emulated}{nbytes}, {self.data}"

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


def measure(
    curve: Curve, passes: int, run: Measure, journal: Journal | None, tell: Callable[[str], None]
) -> tuple[list[Record], dict[str, str]]:
    """Runs all cases of a curve `passes` times: A B C, C B A, and so on; those of `journal` are not run again.

    Returns:
        Records, and why cases were left out: one that fails is not tried again, and the others go on.

    Raises:
        RuntimeError: The one rank that the others are compared with failed.
    """
    cases, failed = curve.cases(), dict(curve.indivisible())
    found: defaultdict[Case, list[Run]] = defaultdict(list)
    for number in range(passes):
        for case in cases if number % 2 == 0 else reversed(cases):
            name = f"{curve.unit}, {case.words}"
            if name in failed:
                continue
            kept = journal.get(curve.unit, case, number) if journal else None
            try:
                told = kept or run(case)
            except RuntimeError as error:
                if case == cases[0]:
                    raise
                failed[name] = in_short(error)
                tell(f"{name}: left out: {error}")
                continue
            if journal and not kept:
                journal.put(curve.unit, case, number, told)
            found[case].append(told)
            tell(f"{name}: {told.total:,.1f} examples/s{' (measured before)' if kept else ''}")
    complete = {case: runs for case, runs in found.items() if len(runs) == passes}
    return list(records_of(curve, complete)), failed


def records_of(curve: Curve, found: Mapping[Case, Sequence[Run]]) -> Iterator[Record]:
    """A record for each case; its ratio is the efficiency: against as many times one rank alone, which has none. Pure.

    The ratio is the median of those of the passes, each with the ranks of the same pass.
    """
    first = curve.cases()[0]
    alone = found[first]
    for case, runs in found.items():
        efficiencies = [run.total / one.total / case.workers for run, one in zip(runs, alone, strict=True)]
        totals = [run.total for run in runs]
        middle = runs[totals.index(sorted(totals)[len(totals) // 2])]
        steps = np.quantile(np.concatenate([run.step_secs for run in runs]), QUANTILES)
        yield Record(
            BENCHMARK,
            f"{curve.unit}, {case.words}",
            ranks=case.ranks,
            value=median(totals),
            unit="examples/s",
            baseline=None if case == first else f"{case.workers} x one rank",
            ratio=None if case == first else median(efficiencies),
            repeats=len(runs),
            spread=(min(totals), max(totals)),
            config={
                "kind": curve.kind,
                "workload": curve.workload,
                "title": curve.title,
                "data": curve.data,
                "way": case.way,
                "workers": case.workers,
                "batch": case.batch,
                "emulated_step_ms": case.emulate_step_ms,
                "ratio_spread": [min(efficiencies), max(efficiencies)],
                "examples_per_sec_by_rank": list(middle.rates),
                "shares": dict(middle.shares),
                "step_secs": dict(zip(map(str, QUANTILES), steps.tolist(), strict=True)),
                **_bytes(case, middle),
                "device": middle.device,
                "nccl": middle.nccl,
                "gpu_memory_bytes": middle.gpu_memory_bytes,
                "gpu_use": middle.gpu_use,
            },
            versions={},
        )


def _bytes(case: Case, run: Run) -> dict[str, Any]:
    """What a worker sends in a step, computed: a ring-allreduce 2(n-1)/n of its gradients, an asynchronous one all.

    As many bytes reach it: the sums, or the parameters.
    """
    nbytes = run.gradient_bytes
    sent = nbytes if case.way == ASYNC else round(2 * (case.workers - 1) / case.workers * nbytes)
    return {"gradient_bytes": nbytes, "sent_bytes_a_step": sent}
