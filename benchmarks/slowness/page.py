"""What slow_rank.py reports: records until a slowed rank is named, alarms among equal ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.page import Report, Section, Target, numbers
from support.records import Found, Record, Sample, records_of

BENCHMARK = "slow_rank"
SLOWED, EQUAL = "one rank slowed", "equal ranks beside other work"
RANKS, SLOW, SLOWER, RECORDS, STEPS = 2, 1, 0.3, 50, 5
"""Ranks; which one is slowed, by which part of its own time of a step; records of a run, and steps of a record."""
SUMMARY = (
    "Two ranks with one thread each train the same; a record is five steps. “One rank slowed”: rank 1 sleeps before "
    "each step for 0.3 of what its steps before took it without waiting for rank 0. “Equal ranks beside other work”: "
    "a Python loop runs on the same machine without end, and either rank that is named is a false alarm.",
)


def records(told: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Record]:
    """Of runs by way, each with `named`: by rank the record at which it was named; and `own_secs`, by rank. Pure."""
    for way, runs in told.items():
        named = [{int(rank): record for rank, record in one["named"].items()} for one in runs]
        about = {"way": way, "named": [sorted(one.items()) for one in named]}
        if way == SLOWED:
            hits = [one.get(SLOW, RECORDS + 1) for one in named]
            about |= {"missed": sum(set(one) != {SLOW} for one in named)}
            yield from records_of(BENCHMARK, "records", [Sample("records until it is named", hits, {}, RANKS, about)])
        else:
            alarms = [len(one) for one in named]
            yield from records_of(BENCHMARK, "ranks", [Sample("ranks named falsely", alarms, {}, RANKS, about)])
        ratios = [one["own_secs"][SLOW] / one["own_secs"][0] for one in runs]
        case = f"own time of rank {SLOW} / rank 0, {way}"
        yield from records_of(BENCHMARK, "of the other", [Sample(case, ratios, {}, RANKS, {"ratio of": way})])


def targets(found: Found) -> list[Target]:
    """The two numbers to reach."""
    slowed, equal = found.one(way=SLOWED), found.one(way=EQUAL)
    late = [] if slowed is None else [("latest", f"{slowed.spread[1]:.0f}", slowed.spread[1] <= RECORDS)]
    if slowed is not None:
        missed = slowed.config["missed"]
        late.append(("runs in which not this rank alone is", f"{missed} of {slowed.repeats}", missed == 0))
    alarms = []
    if equal is not None:
        count = sum(bool(one) for one in equal.config["named"])
        alarms = [("runs with an alarm", f"{count} of {equal.repeats}", count == 0)]
    return [
        Target(f"a rank slower by {SLOWER:.0%} is named", f"within {RECORDS} records", late),
        Target("no equal rank is named", "in no run", alarms),
    ]


def make_page(kept: Sequence[Record]) -> Report:
    """The whole report."""
    found = Found(kept)
    named = numbers([one for one in found.records if "way" in one.config], {"runs with": "way"})
    ratios = numbers([one for one in found.records if "ratio of" in one.config], {"own times": "ratio of"})
    return Report("Slow ranks", SUMMARY, targets(found), [Section("Who is named", [], [], [named, ratios])])
