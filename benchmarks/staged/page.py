"""The records that staging.py makes of what its jobs tell, the numbers to reach, and the report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.page import Report, Section, Table, Target, at_least, at_most
from support.records import Found, Record, Sample, records_of

BENCHMARK = "staging"
SOURCE, STAGED = "read from the source", "stage: node"
MOST, LEAST = 0.01, 0.30
SUMMARY = (
    "What part of a step ranks wait for rows, where their shards lie on a slow source: a file system on a loop device, "
    "of which processes in their control group read so many bytes a second together. Steps are a small model's and a "
    "sleep. The kernel is made to forget the shards all the time, as on a node whose memory does not hold them: each "
    "pass reads them anew. A pass's wait is that of the rank that waited most.",
)


def records(told: Mapping[str, Sequence[Sequence[float]]], config: Mapping[str, Any]) -> Iterator[Record]:
    """The wait in each pass, by way; that of the source is what the other is compared with."""
    for way, runs in told.items():
        for number, waits in enumerate(zip(*runs, strict=True), start=1):
            beside = [run[number - 1] for run in told[SOURCE]] if way != SOURCE and SOURCE in told else None
            against = {f"{SOURCE}, pass {number}": beside} if beside and all(beside) else {}
            about = {**config, "way": way, "pass": number}
            sample = Sample(f"{way}, pass {number}", list(waits), against, int(config["ranks"]), about)
            yield from records_of(BENCHMARK, "part of the time", [sample])


def targets(found: Found) -> list[Target]:
    """Of the second pass."""
    asked = {
        way: [("pass 2", one.value)] if (one := found.one(way=way, **{"pass": 2})) else [] for way in (SOURCE, STAGED)
    }
    return [
        at_most("Input wait of the second pass, staged", f"≤ {MOST:.0%}", asked[STAGED], MOST, ".2%"),
        at_least("The same, read from the source", f"> {LEAST:.0%}", asked[SOURCE], LEAST, ".2%"),
    ]


def make_page(kept: Sequence[Record]) -> Report:
    """The whole report."""
    found = Found(kept)
    rows = [
        (
            str(one.config["way"]),
            str(one.config["pass"]),
            f"{one.value:.2%}",
            f"{one.spread[0]:.2%} to {one.spread[1]:.2%}",
        )
        for one in found.cases()
    ]
    table = Table(("shards", "pass", "input wait", "of all runs"), rows)
    return Report("Staging", SUMMARY, targets(found), [Section("Input wait", [], [], [table])])
