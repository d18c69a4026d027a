"""The records that host_work.py makes of what its jobs tell, the number to reach, and the report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from support.page import Report, Section, Table, Target, at_most, numbers
from support.records import Found, Record, Sample, records_of

from hpc_train.report import words

BENCHMARK = "host_work"
NONE, ONE, FIT, BY_PART = "0 in flight", "1 in flight", "Keras fit", "by part"
WAYS = (FIT, NONE, ONE, BY_PART)
THIS, OTHER = "this checkout", "the other checkout"
"""By public names alone; no step in flight, as in any version."""
MOST_US = 150.0
TENSORFLOW = ("TensorFlow's call", "the report's numbers")
"""Parts that are not the package's."""
SUMMARY = (
    "What a step costs on the host beside its computing: one rank, one thread of TensorFlow, a model of one weight, "
    "one batch of 32 rows for ever.",
    "“TensorFlow's call” is the same graph called again and again with the same batch, its report read each time; what "
    "a step takes beyond it is the package's: feed, hooks, watchdog, records, flags and loop.",
)
BOTH = "A program that uses public names alone, run by both checkouts in turn; no step in flight, no clock inside."
THREAD = {"of the training thread's CPU, µs": "thread_us"}
PARTS = (
    "Each part without those that it calls, by a clock that is read twice for each, which takes some 10 µs of a step. "
    "“loop” is what is left, the flags included; TensorFlow's call and its report's numbers are what they take there, "
    "where a thread of the feed runs beside them."
)


def records(told: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Record]:
    """Microseconds a step by way, with Keras `fit` as the baseline of the others."""
    baselines = {name: [one["wall_us"] for one in told[name]] for name in (FIT, OTHER) if told.get(name)}
    for way, runs in told.items():
        own = [one["wall_us"] for one in runs]
        config: dict[str, Any] = {"way": way, "thread_us": median(one["thread_us"] for one in runs)}
        if way in (NONE, ONE, BY_PART):
            config["call_us"] = median(one["call_us"] for one in runs)
            config["beyond_us"] = median(one["wall_us"] - one["call_us"] for one in runs)
            parts = dict.fromkeys(part for one in runs for part in one["parts_us"])
            config["parts_us"] = {part: median(one["parts_us"].get(part, 0.0) for one in runs) for part in parts}
        wanted = OTHER if way == THIS else FIT
        against = {wanted: baselines[wanted]} if way not in (FIT, OTHER) and wanted in baselines else {}
        yield from records_of(BENCHMARK, "µs a step", [Sample(way, own, against, config=config)])


def targets(found: Found) -> list[Target]:
    """The package's own work: by part, and by what a step takes longer than the call alone."""
    asked = [(way, one.config["beyond_us"]) for way in (NONE, ONE) if (one := found.one(way=way))]
    if by_part := found.one(way=BY_PART):
        own = sum(us for part, us in by_part.config["parts_us"].items() if part not in TENSORFLOW)
        asked.insert(0, ("the sum of its parts", own))
    return [at_most("A step of an empty model beyond TensorFlow's call", f"≤ {MOST_US:g} µs", asked, MOST_US)]


def make_page(kept: Sequence[Record]) -> Report:
    """The whole report."""
    found = Found(kept)
    rows = [
        (
            one.case,
            words.number(one.value, 3),
            *(words.number(one.config.get(key), 3) for key in ("call_us", "beyond_us", "thread_us")),
            words.number(one.ratio, 3),
        )
        for one in found
        if one.case not in (BY_PART, THIS, OTHER)
    ]
    header = ("steps", "µs a step", "TensorFlow's call", "beyond it", "of the training thread's CPU", "x Keras fit")
    sections = [Section("A step", [], [], [Table(header, rows)])]
    if both := [record for way in (THIS, OTHER) for record in found.where(way=way).records]:
        sections.append(Section("Before and after", [BOTH], [], [numbers(both, {"of": "way"}, THREAD)]))
    if by_part := found.one(way=BY_PART):
        cells = [(part, words.number(us, 3)) for part, us in by_part.config["parts_us"].items()]
        sections.append(Section("By part, no step in flight", [PARTS], [], [Table(("part", "µs a step"), cells)]))
    return Report("The host's work in a step", SUMMARY, targets(found), sections)
