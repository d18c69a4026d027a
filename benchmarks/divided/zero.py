"""What a sharded optimizer (run.shard_optimizer) costs in time and saves in memory, beside a whole one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from support.launch import Ranks
from support.page import Section, Target, at_most, numbers
from support.records import Found, Record, Sample, records_of
from support.results import Results

BENCHMARK, LIMIT_SECS = "model_parallel", 900.0
PLAIN, ZERO = "plain", "zero"
CARRIERS = ("horovod", "mpi")
TIME_RANKS, MEMORY_RANKS = 2, 4
MOST_TIME, MOST_MEMORY, MOST_OFF = 1.10, 0.70, 0.01
TEXT = (
    f"A perceptron, Adam, one thread a rank. Time: 20 million parameters on {TIME_RANKS} ranks, both ways in one "
    f"program, in turns. Memory: 75 million parameters on {MEMORY_RANKS} ranks, the rank with most (VmHWM), in "
    "programs of their own."
)


def told(ranks: int, folder: Path, *words: str) -> dict[str, Any]:
    """What one program tells.

    Raises:
        RuntimeError: It failed.
    """
    out = folder / "told.json"
    with Ranks(ranks, ["-m", "divided.zero_program", *words, "--out", str(out)], folder) as started:
        started.wait(LIMIT_SECS)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def measured(results: Results, folder: Path, quick: bool) -> Iterator[Record]:
    """Records of both carriers: seconds a step, and peak memory."""
    size = ("--width", "64", "--rows", "8", "--steps", "1", "--passes", "2") if quick else ()
    large = size or ("--width", "4096", "--rows", "16", "--steps", "2", "--passes", "1")
    for carrier in CARRIERS:
        by = ("--carrier", carrier)
        run = partial(told, TIME_RANKS, folder, "--ways", PLAIN, ZERO, *by, *size)
        secs = results.once(f"time, {carrier}", run)["secs"]
        yield from of_time(secs, carrier)
        ways = {way: partial(told, MEMORY_RANKS, folder, "--ways", way, *by, *large) for way in (PLAIN, ZERO)}
        yield from of_memory(results.turns(f"memory, {carrier}", ways, 1 if quick else 2), carrier)


def of_time(secs: Mapping[str, list[float]], carrier: str) -> Iterator[Record]:
    """Seconds a step. Pure."""
    for way, own in secs.items():
        against = {PLAIN: secs[PLAIN]} if way == ZERO else {}
        config = {"way": way, "what": "time", "carrier": carrier}
        yield from records_of(BENCHMARK, "s", [Sample(f"a step, {way}, {carrier}", own, against, TIME_RANKS, config)])


def of_memory(found: Mapping[str, list[dict[str, Any]]], carrier: str) -> Iterator[Record]:
    """Peak memory of the rank with most, and how far its optimizer is off an N-th. Pure."""
    peaks = {way: [max(r["peak"] for r in one["ranks"]) / 2**20 for one in runs] for way, runs in found.items()}
    for way, own in peaks.items():
        against = {PLAIN: peaks[PLAIN]} if way == ZERO else {}
        sizes = [r["optimizer"][way] for one in found[way] for r in one["ranks"]]
        shares = [size / median(r["optimizer"][PLAIN] for r in found[PLAIN][0]["ranks"]) for size in sizes]
        config = {"way": way, "what": "memory", "carrier": carrier, "share": max(shares)}
        name = f"peak memory, {way}, {carrier}"
        yield from records_of(BENCHMARK, "MiB", [Sample(name, own, against, MEMORY_RANKS, config)])


def targets(found: Found) -> list[Target]:
    """What is to be reached. Pure."""
    zero = [one for one in found.where(way=ZERO).records if one.baseline == PLAIN]
    of = {what: [one for one in zero if one.config["what"] == what] for what in ("time", "memory")}
    off = [(one.config["carrier"], abs(one.config["share"] * MEMORY_RANKS - 1)) for one in of["memory"]]
    return [
        at_most(
            "A step with a sharded optimizer, against a whole one",
            f"≤ {MOST_TIME:g} times",
            [(one.config["carrier"], one.ratio) for one in of["time"]],
            MOST_TIME,
        ),
        at_most(
            "Peak memory with a sharded optimizer, against a whole one",
            f"≤ {MOST_MEMORY:g} times",
            [(one.config["carrier"], one.ratio) for one in of["memory"]],
            MOST_MEMORY,
        ),
        at_most("Bytes of the optimizer off one N-th", f"≤ {MOST_OFF:.0%}", off, MOST_OFF),
    ]


def section(found: Found) -> Section:
    """Both tables. Pure."""
    names = {"way": "way", "by": "carrier"}
    tables = [numbers(of.records, names) for what in ("time", "memory") if (of := found.where(what=what))]
    return Section("Sharded optimizer", [TEXT], [], tables)
