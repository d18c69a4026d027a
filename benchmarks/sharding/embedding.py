"""The case `embedding` of benchmarks/model_parallel.py: a table in parts against a whole one on each rank."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.launch import Ranks
from support.page import Section, Target, at_least, at_most, numbers
from support.records import Found, Record, Sample, records_of

from sharding.embedding_program import DENSE, SHARDED

LEAST_WITH_SGD = 3.0
MOST_OF_TABLE = {2: 0.55, 4: 0.28}
LIMIT_SECS = 600.0


@dataclass(frozen=True)
class Settings:
    """A table of so many rows, batches of so many ids, steps each time, passes there and back."""

    rows: int = 2_000_000
    ids: int = 4096
    steps: int = 3
    passes: int = 4


def measure(optimizer: str, ranks: int, settings: Settings, folder: Path) -> dict[str, Any]:
    """Seconds a step of both ways, each time, and bytes of their tables on the first rank."""
    out = folder / "embedding.json"
    counts = (settings.rows, settings.ids, settings.steps, settings.passes)
    with Ranks(ranks, ["-m", "sharding.embedding_program", optimizer, *map(str, counts), str(out)], folder) as program:
        program.wait(LIMIT_SECS)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def records(benchmark: str, optimizer: str, ranks: int, told: Mapping[str, Any]) -> Iterator[Record]:
    """Steps a second of both ways, and the part of the table that a rank holds."""
    rates = {way: [1 / secs for secs in own] for way, own in told["secs"].items()}
    config = {"part": "embedding", "optimizer": optimizer, "of_table": told["bytes"][SHARDED] / told["bytes"][DENSE]}
    for way, own in rates.items():
        against = {DENSE: rates[DENSE]} if way == SHARDED else {}
        case = f"embedding, {optimizer}, {ranks} ranks, {way}"
        yield from records_of(benchmark, "steps/s", [Sample(case, own, against, ranks, {**config, "way": way})])


def targets(found: Found) -> Iterator[Target]:
    """What issue and page promise."""
    own = found.where(part="embedding", way=SHARDED)
    sgd = [(f"{ranks} ranks", own.ratio(DENSE, optimizer="sgd", ranks=ranks)) for ranks in (2,)]
    yield at_least("ShardedEmbedding / Embedding, SGD", f"≥ {LEAST_WITH_SGD:g}", sgd, LEAST_WITH_SGD)
    for ranks, most in MOST_OF_TABLE.items():
        held = own.one(ranks=ranks)
        share = None if held is None else held.config["of_table"]
        yield at_most(f"part of the table on one of {ranks} ranks", f"≤ {most:g}", [("bytes", share)], most)


def section(found: Sequence[Record]) -> Section:
    """A table of all that was measured."""
    own = Found(found).where(part="embedding")
    names = {"optimizer": "optimizer", "ranks": "ranks", "layer": "way"}
    return Section("A table in parts", [], [], [numbers(own, names, {"of the table": "of_table"})])
