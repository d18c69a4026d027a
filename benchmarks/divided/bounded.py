"""The case `bounded` of benchmarks/model_parallel.py: a table that does not fit under a limit trains on four ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support.launch import Ranks, environment
from support.page import Section, Table, Target
from support.records import Found, Record, Sample, records_of
from support.results import Results
from support.usage import in_short, tell

from divided.limits import CGROUP, KINDS, missing, prefix

BENCHMARK, LIMIT_SECS = "model_parallel", 600.0
FREE, REFUSED, DIVIDED = "one rank, no limit", "one rank", "four ranks"
RANKS = {FREE: 1, REFUSED: 1, DIVIDED: 4}
OF_MEMORY = ("OOM", "bad_alloc", "Cannot allocate memory", "MemoryError", "signal 9", "code 137", "out of memory")
"""What programs print that were refused memory, or mpirun of a rank that was killed."""
MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """A table of so many rows of 64 numbers, ids of a batch, steps, and MiB that a rank may have."""

    rows: int = 8_000_000
    ids: int = 4096
    steps: int = 20
    limit_mib: int = 2200


def measured(results: Results, folder: Path, quick: bool) -> Iterator[Record]:
    """Records of each job: steps that it made, and the peak of its ranks."""
    settings = Settings(2_000_000, 64, 2, 900) if quick else Settings()
    kind = limit_here(results, KINDS[-1:] if quick else KINDS)  # a kernel that kills is no trial
    for way in RANKS:
        limited = None if way == FREE else kind
        run = partial(told, RANKS[way], limited, settings, folder)
        yield from of_job(way, limited, results.once(f"bounded, {way}, {limited}", run), settings)


def limit_here(results: Results, kinds: Sequence[str]) -> str | None:
    """The first of these kinds of limit that this machine keeps; why there is none of the kinds before is noted."""
    for kind in kinds:
        why = missing(kind, environment())
        if why is None:
            return kind
        tell(f"bounded: {kind}: {why}")
        results.leave_out(f"bounded, under {kind}", why)
    return None


def told(ranks: int, kind: str | None, settings: Settings, folder: Path) -> dict[str, Any]:
    """Steps, losses and peaks of a job; `ended`: what it printed last, where it failed."""
    job_dir = folder / "bounded"
    counts = (settings.rows, settings.ids, settings.steps)
    program = ["-m", "divided.bounded_program", *map(str, counts), str(job_dir)]
    limit = [] if kind is None else prefix(kind, settings.limit_mib * MIB)
    ended = ""
    try:
        with Ranks(ranks, [*limit, *program], folder) as started:
            started.wait(LIMIT_SECS)
    except RuntimeError as error:
        lines = (folder / "ranks.log").read_text(errors="replace").splitlines()
        refusals = (line[line.index(word) :] for line in lines for word in OF_MEMORY if word in line)
        ended = next(refusals, in_short(error).partition(";")[0])
        tell(f"bounded, {ranks} ranks: {ended}")
    try:
        path = job_dir / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        train = [record for record in records if record["kind"] == "train"]
        peaks = train[-1]["by_rank"]["memory"] if train else []
        saved = sum(file.stat().st_size for file in job_dir.glob("checkpoints/*/state.h5"))
    finally:
        shutil.rmtree(job_dir, ignore_errors=True)
    return {"losses": [record["loss"] for record in train], "peaks": peaks, "ended": ended, "saved": saved}


def of_job(way: str, kind: str | None, found: Mapping[str, Any], settings: Settings) -> Iterator[Record]:
    """Pure."""
    config = {
        "part": "bounded",
        "way": way,
        "limit": kind,
        "limit_mib": settings.limit_mib,
        "table_mib": settings.rows * 64 * 4 / MIB,
        "peak_mib": max(found["peaks"], default=0) / MIB or None,
        "loss": found["losses"][-1] if found["losses"] else None,
        "ended": found["ended"][:120],
        "refused": not found["losses"] and any(word in found["ended"] for word in OF_MEMORY),
        "saved_mib": found["saved"] / MIB,
        "trained": trained(found, settings.steps),
    }
    steps = float(len(found["losses"]))
    yield from records_of(BENCHMARK, "steps", [Sample(f"bounded, {way}", [steps], {}, RANKS[way], config)])


def trained(found: Mapping[str, Any], steps: int) -> bool:
    """Whether all steps were made, with finite losses (metrics.jsonl has null for others), and saved. Pure."""
    losses = found["losses"]
    return not found["ended"] and len(losses) == steps and None not in losses and found["saved"] > 0


def targets(found: Found) -> list[Target]:
    """What is to be reached. Pure."""
    own = found.where(part="bounded")
    what, wanted = "A table too large for one rank trains on four", "refused on one, all steps on four"
    one = own.one(way=DIVIDED)
    kind = None if one is None else one.config["limit"]
    if kind is None:
        return [Target(f"{what}, under a limit that the kernel keeps", wanted, [])]
    parts = [
        (way, f"{record.value:.0f} steps", record.config["refused" if way == REFUSED else "trained"])
        for way in RANKS
        for record in own.where(way=way)
    ]
    mine = Target(f"{what}, under a limit of {kind}", wanted, parts)
    return [mine] if kind == CGROUP else [Target(f"{what}, under {CGROUP}", wanted, []), mine]


def section(found: Found) -> Section:
    """Each job. Pure."""
    own = found.where(part="bounded").cases()
    if not own:
        return Section("A table larger than a rank's memory")
    about = own[-1].config
    limit = f"The limit is one of {about['limit']}, for each rank, set before Python starts: more is refused"
    if about["limit"] is None:
        limit = "No limit could be set here: peaks are resident memory as it was, beside the limit that was meant"
    text = (
        f"ShardedEmbedding with a table of {about['table_mib']:,.0f} MiB, SGD, a job that saves it at its end; "
        f"{about['limit_mib']:,} MiB a rank. {limit}. Peak: resident memory of the rank with most (VmHWM), which has "
        "pages of files, too."
    )
    rows = [
        (
            one.config["way"],
            *("–" if n is None else f"{n:,.{digits}f}" for n, digits in figures(one)),
            one.config["ended"] or "trained, saved",
        )
        for one in own
    ]
    header = ("job", "steps", "peak MiB of a rank", "last loss", "checkpoint MiB", "end")
    return Section("A table larger than a rank's memory", [text], [], [Table(header, rows)])


def figures(one: Record) -> list[tuple[float | None, int]]:
    """Numbers of a row, with their digits."""
    return [(one.value, 0), (one.config["peak_mib"], 0), (one.config["loss"], 3), (one.config["saved_mib"], 0)]
