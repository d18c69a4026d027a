"""How fast statistics over shards are, on one rank and on two, and adapted layers against Keras's own adapt.

python benchmarks/map_reduce.py                # three minutes on two cores
python benchmarks/map_reduce.py --ranks 8      # against one rank
python benchmarks/map_reduce.py --quick        # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from reduction.program import ALL, KERAS, MOMENTS, OURS, write_rows
from support.launch import Ranks, check_mpirun, check_ranks, working_parent
from support.page import Report, Section, at_least, numbers
from support.records import Found, Record, Sample, records_of
from support.results import open_results
from support.usage import make_parser, run_main, tell

BENCHMARK = "map_reduce"
ONE = "1 rank"
REDUCED, ADAPTED = (MOMENTS, ALL), (OURS, KERAS)
LEAST_SPEED_UP, LEAST_AGAINST_KERAS = 1.7, 4.0
LIMIT_SECS = 600.0
SUMMARY = (
    "“moments” are those of four float32 columns, which gzip has compressed; “statistics” are what `hpc-train stats` "
    "finds out of these, two columns of texts and two of whole numbers.",
    "“ht.adapt” adapts a FeatureSpace of these eight columns, read from the shards; “FeatureSpace.adapt” is Keras's, "
    "for rows in memory. One rank, one thread each.",
    "Each rank has one core, on which it reads, decodes and computes. Each run is one of its own (A B, B A), which "
    "repeats its work; medians of thousands of rows a second.",
)


@dataclass(frozen=True)
class Settings:
    """How much is measured: rows, times in a run, passes there and back; on so many ranks, beside one."""

    ranks: int
    rows: int = 1_000_000
    times: int = 3
    passes: int = 2


def measure(what: str, ranks: int, settings: Settings, folder: Path) -> dict[str, Any]:
    """The seconds of each time, of one run."""
    out = folder / "secs.json"
    words = ["-m", "reduction.program", what, str(folder), str(settings.times), str(out)]
    with Ranks(ranks, words, folder, options=("--bind-to", "core")) as program:
        program.wait(LIMIT_SECS)
    return {"secs": json.loads(out.read_text())}


def records(what: str, settings: Settings, told: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Record]:
    """Rows a second of each way; the first one is what others are compared with."""
    rates = {way: [settings.rows / 1000 / median(one["secs"]) for one in runs] for way, runs in told.items()}
    first = next(iter(rates))
    for way, own in rates.items():
        against = {} if way == first else {first: rates[first]}
        ranks = settings.ranks if way.endswith("ranks") else 1
        yield from records_of(
            BENCHMARK, "1000 rows/s", [Sample(f"{what}, {way}", own, against, ranks, {"what": what, "way": way})]
        )


def make_page(kept: Sequence[Record], ranks: int) -> Report:
    """The whole report."""
    found, many = Found(kept), f"{ranks} ranks"
    speed_up = [(what, found.ratio(ONE, what=what, way=many)) for what in REDUCED]
    targets = [
        at_least(f"{many} / one rank", f"≥ {LEAST_SPEED_UP} on two", speed_up, LEAST_SPEED_UP * ranks / 2),
        at_least(
            "ht.adapt / FeatureSpace.adapt",
            f"≥ {LEAST_AGAINST_KERAS:g}",
            [("8 columns", found.ratio(KERAS, what="adapt", way=OURS))],
            LEAST_AGAINST_KERAS,
        ),
    ]
    sections = [
        Section(title, [], [], [numbers(own, {"of": "what", "way": "way"})])
        for title, names in (("Statistics", REDUCED), ("Adapted layers", ("adapt",)))
        if (own := [record for what in names for record in found.where(what=what).records])
    ]
    return Report("Statistics over ranks", SUMMARY, targets, sections)


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="beside one (default: 2)")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    check_mpirun()
    check_ranks([args.ranks], oversubscribe=True)
    settings = Settings(args.ranks, 20_000, 1, 1) if args.quick else Settings(args.ranks)
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="map-reduce-") as name:
            folder = Path(name)
            write_rows(folder, settings.rows)
            for what in REDUCED:
                tell(what)
                ways: dict[str, Callable[[], Any]] = {
                    ONE: partial(measure, what, 1, settings, folder),
                    f"{args.ranks} ranks": partial(measure, what, args.ranks, settings, folder),
                }
                results.add(what, records(what, settings, results.turns(what, ways, settings.passes)))
            tell("adapted layers")
            ways = {way: partial(measure, way, 1, settings, folder) for way in (KERAS, OURS)}
            results.add("adapt", records("adapt", settings, results.turns("adapt", ways, settings.passes)))
        return results.conclude(make_page(results.records, args.ranks), args.strict)


if __name__ == "__main__":
    run_main(main)
