"""The records that start.py makes of what its jobs tell, the numbers to reach, and the report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from support.page import Report, Section, Table, at_most, numbers
from support.records import Found, Record, Sample, records_of

from hpc_train.report import words
from hpc_train.telemetry.start_timeline import PHASES

BENCHMARK = "start"
START, RESTART = "to the first step", "from SIGKILL to the next step"
THIS, OTHER, FIT = "this checkout", "the other checkout", "Keras fit, one process"
MOST_RATIO = 0.7
SUMMARY = (
    "“To the first step”: seconds from the command `hpc-train launch` to the end of the first step, of a small "
    "convolutional network on images in HDF5; of Keras fit, from the start of a program that trains it alone.",
    "“From SIGKILL to the next step”: a rank is killed after a checkpoint, and `--max-restarts` starts all again.",
    "One thread a rank; each rank imports TensorFlow by itself, so ranks beyond the number of cores take longer.",
)


def records(what: str, ranks: int, told: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Record]:
    """Seconds by way; those of this checkout are compared with the others'."""
    secs = {way: [one["secs"] for one in runs] for way, runs in told.items()}
    for way, own in secs.items():
        against = {name: others for name, others in secs.items() if way == THIS and name != THIS}
        config: dict[str, Any] = {"what": what, "way": way}
        phases = [one["phases"] for one in told[way] if one.get("phases")]
        if phases:
            config["phases"] = {p: median(own.get(p, 0.0) for own in phases) for p in PHASES if p in phases[0]}
        yield from records_of(BENCHMARK, "s", [Sample(f"{way}, {what}", own, against, ranks, config)])


def make_page(kept: Sequence[Record]) -> Report:
    """The whole report."""
    found = Found(kept)
    asked = [(what, found.ratio(OTHER, what=what, way=THIS)) for what in (START, RESTART)]
    targets = [at_most("Seconds / those of the other checkout", f"≤ {MOST_RATIO}", asked, MOST_RATIO)]
    sections = [
        Section(what[0].upper() + what[1:], [], [], [numbers(own, {"of": "way", "ranks": "ranks"})])
        for what in (START, RESTART)
        if (own := found.where(what=what).records)
    ]
    if (this := found.one(what=START, way=THIS)) is not None and "phases" in this.config:
        rows = [(phase, words.number(secs, 3)) for phase, secs in this.config["phases"].items()]
        text = ["On the chief, medians. docs/report.md has what is done in each phase."]
        sections.append(Section("By phase", text, [], [Table(("phase", "s"), rows)]))
    against = any(ratio is not None for _, ratio in asked)
    return Report("The start of a job", SUMMARY, targets if against else [], sections)
