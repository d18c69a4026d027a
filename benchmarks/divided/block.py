"""The case `block` of benchmarks/model_parallel.py: Transformer blocks divided among two ranks, against one rank."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from support.launch import Ranks
from support.page import Section, Table, Target, numbers
from support.records import Found, Record, Sample, records_of
from support.results import Results

from hpc_train.report import words

BENCHMARK, LIMIT_SECS = "model_parallel", 600.0
ONE, DIVIDED = "one rank", "divided"
RANKS = {ONE: 1, DIVIDED: 2}
SUMS = {"forward": 2, "backward": 2}
"""Of activations or gradients [rows, length, width] in a block, by pass; docs/model_parallel.md says so."""
FLOAT_BYTES = 4
SPLIT = ("input", "compute", "exchange in layers", "waiting in layers", "gradients", "update", "rest")
TEXT = (
    "Transformer blocks as in docs/model_parallel.md: MultiHeadAttention, ColumnDense and RowDense, float32, SGD, one "
    "thread a rank; each way a job of its own, with run.allreduce: mpi. Bytes are counted where each rank hands them "
    "to MPI, between two steps, and computed as two sums forward and two backward a block, of rows x length x width "
    "numbers; of two ranks each sends as many. The split has seconds, as means over ranks: of the job's own split, "
    "whose compute has what layers exchange, too; waiting lasts until the other rank is there."
)


@dataclass(frozen=True)
class Settings:
    """Rows of a batch, their length and width, blocks, and steps that are timed of each job."""

    rows: int = 4
    length: int = 256
    width: int = 512
    blocks: int = 2
    steps: int = 6

    @property
    def nbytes(self) -> int:
        """What the ranks of a model group sum up in a step, of each pass."""
        return SUMS["forward"] * self.blocks * self.rows * self.length * self.width * FLOAT_BYTES


def measured(results: Results, folder: Path, quick: bool) -> Iterator[Record]:
    """Records of both ways, whose jobs run in turns."""
    settings = Settings(2, 8, 16, 2, 2) if quick else Settings()
    ways = {way: partial(told, ranks, settings, folder) for way, ranks in RANKS.items()}
    yield from of_blocks(results.turns("block", ways, 1 if quick else 4), settings)


def told(ranks: int, settings: Settings, folder: Path) -> dict[str, Any]:
    """What one job tells: see `block_program.main`."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="block-") as name:
        program = ["-m", "divided.block_program", *map(str, astuple(settings)), name]
        with Ranks(ranks, program, folder) as started:
            started.wait(LIMIT_SECS)
        found: dict[str, Any] = json.loads((Path(name) / "block.json").read_text())
    return found


def of_blocks(found: Mapping[str, Sequence[Mapping[str, Any]]], settings: Settings) -> Iterator[Record]:
    """Seconds a step, where they go, bytes that are summed up, and memory of the rank with most. Pure."""
    secs = {way: [median(run["secs"]) for run in runs] for way, runs in found.items()}
    for way, runs in found.items():
        splits = [split(run["shares"], rank, n, median(run["secs"])) for run in runs for n, rank in ranks_of(run)]
        config = {
            "part": "block",
            "way": way,
            "split": {name: fmean(one[name] for one in splits) for name in SPLIT},
            "memory_mib": max(rank["memory"] for run in runs for _, rank in ranks_of(run)) / 2**20,
            "counted": {part: sorted(bytes_of(runs, part)) for part in SUMS},
            "others": max(bytes_of(runs, "others")),
            "computed": dict.fromkeys(SUMS, settings.nbytes),
            "planned": max(run["planned"] for run in runs),
        }
        against = {ONE: secs[ONE]} if way != ONE else {}
        yield from records_of(BENCHMARK, "s", [Sample(f"block, {way}", secs[way], against, RANKS[way], config)])


def ranks_of(run: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """What each rank of a job tells, with its number."""
    return enumerate(run["ranks"])


def bytes_of(runs: Sequence[Mapping[str, Any]], part: str) -> set[float]:
    """What ranks have handed to MPI in a step; one number where all of them have the same."""
    return {rank["counts"].get(f"{part} bytes", 0) for run in runs for _, rank in ranks_of(run)}


def split(shares: Mapping[str, Any], rank: Mapping[str, Any], number: int, secs: float) -> dict[str, float]:
    """Seconds of a step by what they are spent on: the job's own split, its compute without what layers exchange."""
    own = {name: shares[name][number] * secs for name in ("input", "compute", "communication", "apply")}
    exchange, waiting = (
        sum(rank["counts"].get(f"{part} {what}", 0.0) for part in SUMS) for what in ("secs", "waiting")
    )
    compute = own["compute"] - exchange - waiting
    known = (own["input"], compute, exchange, waiting, own["communication"], own["apply"])
    return dict(zip(SPLIT, (*known, secs - sum(known)), strict=True))


def targets(found: Found) -> list[Target]:
    """What is to be reached. Pure."""
    one = found.one(part="block", way=DIVIDED)
    if one is None:
        return [Target("Bytes that layers exchange in a step", "as computed", [])]
    about = one.config
    parts = [
        (
            part,
            f"{', '.join(f'{n:,.0f}' for n in about['counted'][part])} of {about['computed'][part]:,}",
            about["counted"][part] == [about["computed"][part]],
        )
        for part in SUMS
    ]
    whole = sum(about["computed"].values())
    parts.append(("hpc-train plan", f"{about['planned']:,} of {whole:,}", about["planned"] == whole))
    return [Target("Bytes that layers exchange in a step", "as computed", parts)]


def section(found: Found) -> Section:
    """All that was measured. Pure."""
    own = found.where(part="block").cases()
    rows = [(one.config["way"], *(words.number(one.config["split"][name], 3) for name in SPLIT)) for one in own]
    sizes = [
        (
            one.config["way"],
            *(f"{max(one.config['counted'][part]):,.0f}" for part in SUMS),
            f"{one.config['others']:,.0f}",
        )
        for one in own
    ]
    return Section(
        "Transformer blocks divided among ranks",
        [TEXT],
        [],
        [
            numbers(own, {"way": "way", "ranks": "ranks"}, {"most MiB of a rank": "memory_mib"}),
            Table(("where a step's time goes", *SPLIT), rows),
            Table(("bytes a step", *SUMS, "gradients, loss and flags"), sizes),
        ],
    )
