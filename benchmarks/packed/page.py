"""The records that pack.py makes of what it counts and times, the numbers to reach, and the report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from support.page import Report, Section, Target, at_most, numbers
from support.records import Found, Record, Sample, records_of

BENCHMARK = "pack"
SHARED, PACKED = "the environment itself", "its pack"
RANK, STARTS, SECS = "calls of a rank", "calls of a start", "seconds to start"
MOST_CALLS, NO_SLOWER = 0.05, 1.05
SUMMARY = (
    "Ranks that start from an environment, and from its pack, unpacked in another folder. Counted by strace: calls of "
    "the file system by name (and listings of folders) that lead into the environment, its Python or its hpc_train, "
    "which clusters have on a shared file system. A rank imports MPI, TensorFlow, Keras and hpc_train's trainer; "
    "many that start at once import what hpc_train reads job files with, without TensorFlow.",
    "Not counted: reads of files that are open; the job's own code and data; and what is done once a start of the job, "
    "reading the one file of the pack, and looking whether its hpc_train is as it was.",
    "Both lie on the same disk here, and their files in memory: seconds show that a pack costs nothing, not what it "
    "saves where many nodes ask one file system.",
)


def records(
    what: str, unit: str, told: Mapping[str, Sequence[float]], number: int, anywhere: Mapping[str, float] | None = None
) -> Iterator[Record]:
    """Numbers by way; those of the pack are compared with the environment's.

    Args:
        number: Of ranks, or starts. anywhere: Calls by way, in whatever folder.
    """
    for way, own in told.items():
        against = {SHARED: told[SHARED]} if way == PACKED else {}
        about = {"what": what, "way": way, **({"all": anywhere[way]} if anywhere else {})}
        yield from records_of(BENCHMARK, unit, [Sample(f"{what}, {way}", own, against, number, about)])


def targets(found: Found) -> list[Target]:
    """Of the pack."""
    ratio = {what: found.ratio(SHARED, what=what, way=PACKED) for what in (RANK, STARTS, SECS)}
    calls = [("a rank", ratio[RANK]), ("a start of many", ratio[STARTS])]
    return [
        at_most("Calls on the shared folder / without a pack", f"≤ {MOST_CALLS:.0%}", calls, MOST_CALLS, ".2%"),
        at_most("Seconds to start / without a pack", f"≤ {NO_SLOWER}", [("2 ranks", ratio[SECS])], NO_SLOWER),
    ]


def make_page(kept: Sequence[Record]) -> Report:
    """The whole report."""
    found = Found(kept)
    sections = []
    for what, number in ((RANK, "ranks"), (STARTS, "starts at once"), (SECS, "ranks")):
        if own := found.where(what=what).records:
            table = numbers(own, {"from": "way", number: "ranks"}, {"calls anywhere": "all"} if what != SECS else None)
            sections.append(Section(what[0].upper() + what[1:], [], [], [table]))
    if own := found.where(what="the pack").records:
        sections.append(Section("The pack", [], [], [numbers(own, {"": "way"})]))
    return Report("Packs", SUMMARY, targets(found), sections)
