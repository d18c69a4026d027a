"""Names slow ranks: in the log, in status.json, in the metrics, and on wish for the next start. For the chief."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpc_train.telemetry import cpu_clock, gpu_clock
from hpc_train.telemetry.metrics import MetricsWriter
from hpc_train.telemetry.progress import OWN_SECS
from hpc_train.telemetry.slow_ranks import SlowRank, SlowRanks
from hpc_train.telemetry.status import StatusFile
from hpc_train.telemetry.units import short_secs

log = logging.getLogger(__name__)

KIND = "rank_times"
"""The record that each run ends with: `own_secs` of all ranks, however many they are, the mean over its records."""


def node_of(about: Mapping[str, Any]) -> str:
    """The node of a rank, as Slurm calls it where it is Slurm's. Pure."""
    return str(about.get("node") or about.get("host", ""))


class SlowRankLog:
    """What records tell of ranks' own times.

    Args:
        factor: See SlowRanks; None: no rank is named.
        ranks: About each rank, as environment.json has it. judged: those whose own time is known.
        exclude: Is given the host of a rank that is named and why, where the next start is to do without it.
    """

    def __init__(
        self,
        metrics: MetricsWriter,
        status: StatusFile,
        factor: float | None,
        ranks: Sequence[Mapping[str, Any]],
        judged: Sequence[bool],
        exclude: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._metrics, self._status, self._ranks, self._judged, self._exclude = metrics, status, ranks, judged, exclude
        self._judge = SlowRanks(factor) if factor is not None else None
        self._sums, self._counts = [0.0] * len(ranks), [0] * len(ranks)
        self._named: list[dict[str, Any]] = []
        self._step = 0

    def record(self, step: int, by_rank: Mapping[str, Sequence[float | None]]) -> None:
        """A record; `by_rank` has OWN_SECS where it is known, and what cpu_clock and gpu_clock tell."""
        self._step = step
        own = list(by_rank.get(OWN_SECS, []))[: len(self._ranks)]
        for rank, secs in enumerate(own):
            if secs is not None:
                self._sums[rank] += secs
                self._counts[rank] += 1
        if self._judge is not None:
            for slow in self._judge.judge(
                step, [secs if self._judged[rank] else None for rank, secs in enumerate(own)]
            ):
                self._name(slow, by_rank)

    def sum_up(self) -> None:
        """Notes the mean times of all ranks in the metrics; once, at the end of the run."""
        if any(self._counts):
            means = [total / count if count else None for total, count in zip(self._sums, self._counts, strict=True)]
            self._metrics.note(KIND, self._step, own_secs=[mean and float(f"{mean:.4g}") for mean in means])
            self._counts = [0] * len(means)

    def _name(self, slow: SlowRank, by_rank: Mapping[str, Sequence[float | None]]) -> None:
        about = self._ranks[slow.rank]
        host, device = node_of(about), str(about.get("device", ""))

        def told(name: str) -> float | None:
            values = by_rank.get(name, [])
            return values[slow.rank] if slow.rank < len(values) else None

        of_core = cpu_clock.in_words(*map(told, (cpu_clock.CLOCK, cpu_clock.THROTTLED, cpu_clock.TAKEN)))
        of_gpu = gpu_clock.in_words(*map(told, (gpu_clock.GPU_CLOCK, gpu_clock.GPU_HELD)))
        why = "; ".join(filter(None, (of_gpu, of_core)))
        found = {"rank": slow.rank, "host": host, "ratio": round(slow.ratio, 3), "step": slow.step, "why": why}
        self._named.append(found)
        self._status.update(slow_ranks=self._named)
        self._metrics.note("slow_rank", slow.step, **{name: part for name, part in found.items() if name != "step"})
        log.warning(
            f"rank {slow.rank} on {host} ({device}) is slow: its own part of a step takes {short_secs(slow.secs)}, "
            f"{slow.ratio:.2f} times the median of the other ranks{f'; {why}' if why else ''}"
        )
        if self._exclude is not None:
            self._exclude(host, found)
