"""The case `embedding` of benchmarks/model_parallel.py: a table in parts against a whole one on each rank."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support.launch import Ranks
from support.page import Section, Target, at_most, numbers
from support.records import Found, Record, Sample, records_of
from support.results import Results

from divided.embedding_program import DENSE, SHARDED

LEAST_WITH_SGD = 3.0
MOST_OF_TABLE = {2: 0.55, 4: 0.28}
BENCHMARK, LIMIT_SECS = "model_parallel", 600.0
RUNS = (("sgd", 2), ("adam", 2), ("sgd", 4))
TEXT = (
    "A table of 2 million rows of 64, batches of 4,096 ids a rank, one thread a rank: its rows spread over the ranks, "
    "and whole on each with a dense allreduce of its gradient; both ways in one program, in turns."
)


@dataclass(frozen=True)
class Settings:
    """A table of so many rows, batches of so many ids, steps each time, passes there and back."""

    rows: int = 2_000_000
    ids: int = 4096
    steps: int = 3
    passes: int = 4


def measured(results: Results, folder: Path, quick: bool) -> Iterator[Record]:
    """Records of each optimizer and number of ranks."""
    settings = Settings(2000, 64, 1, 1) if quick else Settings()
    for optimizer, ranks in RUNS:
        run = partial(told, optimizer, ranks, settings, folder)
        yield from of_time(optimizer, ranks, results.once(f"embedding, {optimizer}, {ranks} ranks", run))


def told(optimizer: str, ranks: int, settings: Settings, folder: Path) -> dict[str, Any]:
    """Seconds a step of both ways, each time, and bytes of their tables on the first rank."""
    out = folder / "embedding.json"
    counts = (settings.rows, settings.ids, settings.steps, settings.passes)
    with Ranks(ranks, ["-m", "divided.embedding_program", optimizer, *map(str, counts), str(out)], folder) as program:
        program.wait(LIMIT_SECS)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def of_time(optimizer: str, ranks: int, found: Mapping[str, Any]) -> Iterator[Record]:
    """Seconds a step of both ways, and the part of the table that a rank holds. Pure."""
    held = found["bytes"][SHARDED] / found["bytes"][DENSE]
    for way, own in found["secs"].items():
        against = {DENSE: found["secs"][DENSE]} if way == SHARDED else {}
        config = {"part": "embedding", "optimizer": optimizer, "way": way, "of_table": held if way == SHARDED else 1.0}
        case = f"embedding, {optimizer}, {ranks} ranks, {way}"
        yield from records_of(BENCHMARK, "s", [Sample(case, own, against, ranks, config)])


def targets(found: Found) -> list[Target]:
    """What is to be reached. Pure."""
    own = found.where(part="embedding", way=SHARDED)
    sgd = [("SGD, 2 ranks", own.ratio(DENSE, optimizer="sgd", ranks=2))]
    one = {ranks: own.one(optimizer="sgd", ranks=ranks) for ranks in MOST_OF_TABLE}
    return [
        at_most(
            "A step with a table in parts, against a whole one", f"≤ 1/{LEAST_WITH_SGD:g}", sgd, 1 / LEAST_WITH_SGD
        ),
        *(
            at_most(
                f"Bytes of the table on one of {ranks} ranks, against a whole one",
                f"≤ {most:g} times",
                [("", None if one[ranks] is None else one[ranks].config["of_table"])],
                most,
            )
            for ranks, most in MOST_OF_TABLE.items()
        ),
    ]


def section(found: Found) -> Section:
    """All that was measured. Pure."""
    own = found.where(part="embedding")
    names = {"optimizer": "optimizer", "ranks": "ranks", "layer": "way"}
    return Section("A table in parts", [TEXT], [], [numbers(own.records, names, {"of the table": "of_table"})])
