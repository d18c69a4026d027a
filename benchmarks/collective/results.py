"""From what the ranks told to records, and the lines on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from support.records import Record
from support.timing import paired_ratio

from collective.places import Run
from collective.ways import MEMCPY, bus_factor, ratio_text, raw_of, size_name

BENCHMARK = "collectives"
GIGA = 1e9
HEADER = (
    f"{'size':>10} {'count':>10} {'type':>7}  {'operation':<10} {'way':<30} "
    f"{'time us':>11} {'algbw':>8} {'busbw':>8} {'x raw':>7} {'x memcpy':>8} {'#wrong':>6}"
)


def unit_of(run: Run, operation: str, nbytes: int) -> str:
    """What is measured, or not, as one."""
    return f"{operation}, {run.place}, {run.ranks} ranks, {size_name(nbytes)}"


def records_of(
    run: Run, about: Mapping[str, Any], operation: str, nbytes: int, ways: Mapping[str, Mapping[str, Any]]
) -> list[Record]:
    """A record for each way and each of what it is compared with; values are bus bandwidths in GB/s."""
    bandwidths = {way: _bandwidths(operation, run.ranks, nbytes, way, told["secs"]) for way, told in ways.items()}
    found = []
    for way, told in ways.items():
        values, secs = bandwidths[way], median(told["secs"])
        config = {
            "operation": operation,
            "place": run.place,
            "way": way,
            "bytes": nbytes,
            "count": nbytes // 4,
            "type": "float32",
            "secs": secs,
            "algbw": nbytes / secs / GIGA,
            "iterations": told["iterations"],
            "wrong": 0,
            "one_sided": run.one_sided,
            **about,
        }
        compared: list[str | None] = [
            other for other in (raw_of(operation), MEMCPY) if other in ways and MEMCPY != way != other
        ]
        for baseline in compared or [None]:
            ratio: float | None = None
            if baseline is not None:
                ratio, low, high = paired_ratio(values, bandwidths[baseline])
                config = {**config, "ratio_spread": [low, high]}
            found.append(
                Record(
                    BENCHMARK,
                    f"{unit_of(run, operation, nbytes)}, {way}",
                    ranks=run.ranks,
                    value=_bandwidths(operation, run.ranks, nbytes, way, [secs])[0],
                    unit="GB/s",
                    baseline=baseline,
                    ratio=ratio,
                    repeats=len(values),
                    spread=(min(values), max(values)),
                    config=config,
                    versions={},
                )
            )
    return found


def _bandwidths(operation: str, ranks: int, nbytes: int, way: str, secs: Sequence[float]) -> list[float]:
    """Bus bandwidth by repeat; of memcpy the bytes that a rank copies."""
    factor = 1.0 if way == MEMCPY else bus_factor(operation, ranks)
    return [factor * nbytes / s / GIGA for s in secs]


class Found:
    """Records, by what they are of."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records: dict[tuple[str, int, str, int, str], dict[str | None, Record]] = {}
        for record in records:
            own = record.config
            key = (own["place"], record.ranks, own["operation"], own["bytes"], own["way"])
            self._records.setdefault(key, {})[record.baseline] = record

    def groups(self) -> list[tuple[str, int]]:
        """Places and counts of ranks, in the order in which they were measured."""
        return list(dict.fromkeys((place, ranks) for place, ranks, _, _, _ in self._records))

    def operations(self, place: str, ranks: int) -> list[str]:
        """Those measured there."""
        return list(dict.fromkeys(o for p, n, o, _, _ in self._records if (p, n) == (place, ranks)))

    def ways(self, place: str, ranks: int, operation: str) -> list[str]:
        """Those measured there, at any size."""
        return list(dict.fromkeys(w for p, n, o, _, w in self._records if (p, n, o) == (place, ranks, operation)))

    def sizes(self, place: str, ranks: int, operation: str) -> list[int]:
        """Those measured there, in order."""
        return sorted({s for p, n, o, s, _ in self._records if (p, n, o) == (place, ranks, operation)})

    def get(self, place: str, ranks: int, operation: str, nbytes: int, way: str) -> Record | None:
        """What was measured; the baseline is any of its baselines."""
        return next(iter(self._records.get((place, ranks, operation, nbytes, way), {}).values()), None)

    def ratio(self, place: str, ranks: int, operation: str, nbytes: int, way: str, baseline: str) -> float | None:
        """Over a baseline, of bus bandwidths; None where one was not measured."""
        if way == baseline:
            return 1.0
        record = self._records.get((place, ranks, operation, nbytes, way), {}).get(baseline)
        return None if record is None else record.ratio


def lines(records: Sequence[Record]) -> Iterator[str]:
    """The lines of one unit on the terminal, as nccl-tests has them."""
    found = Found(records)
    for record in {record.case: record for record in records}.values():
        own = record.config
        key = (own["place"], record.ranks, own["operation"], own["bytes"], own["way"])
        ratios = [found.ratio(*key, raw_of(own["operation"])), found.ratio(*key, MEMCPY)]
        told = [ratio_text(ratio) for ratio in ratios]
        yield (
            f"{own['bytes']:>10} {own['count']:>10} {own['type']:>7}  {own['operation']:<10} {own['way']:<30} "
            f"{1e6 * own['secs']:>11.2f} {own['algbw']:>8.3g} {record.value:>8.3g} "
            f"{told[0]:>7} {told[1]:>8} {own['wrong']:>6}"
        )
