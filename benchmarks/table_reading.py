"""How fast the schema of a CSV file is found, on one rank and on two, and shards are written of it; and in what memory.

python benchmarks/table_reading.py            # ten million rows, 0.6 GB; a quarter of an hour on two cores
python benchmarks/table_reading.py --rows 1000000
python benchmarks/table_reading.py --quick    # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support.launch import Ranks, check_mpirun, check_ranks, working_parent
from support.page import Report, Section, at_least, numbers
from support.records import Found, Record, Sample, records_of
from support.results import open_results
from support.usage import make_parser, run_main, tell
from tables.reading import ARROW, SCHEMA, SHARD, write_table

BENCHMARK = "table_reading"
LEAST_SPEED_UP = 1.7
LIMIT_SECS = 1800.0
SUMMARY = (
    "“schema” is `hpc-train schema` of a CSV file with nine columns: it counts quotes, and then reads all rows twice. "
    "“shard” is `hpc-train shard --schema`. “pyarrow.csv” reads the same file once, in blocks, with one thread.",
    "Each rank has one core. Each run is one of its own (A B, B A); medians of thousands of rows a second, and the "
    "most memory of the chief, Python and libraries included.",
)


@dataclass(frozen=True)
class Settings:
    """How much is measured: rows, passes there and back; on so many ranks, beside one."""

    ranks: int
    rows: int
    passes: int = 1


def measure(way: str, ranks: int, folder: Path) -> dict[str, Any]:
    """Seconds and memory of one run."""
    out = folder / "measured.json"
    with Ranks(
        ranks, ["-m", "tables.reading", way, str(folder), str(out)], folder, options=("--bind-to", "core")
    ) as run:
        run.wait(LIMIT_SECS)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def records(settings: Settings, told: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Record]:
    """Rows a second and memory of each way; reading by pyarrow is what others are compared with."""
    rates = {way: [settings.rows / 1000 / one["secs"] for one in runs] for way, runs in told.items()}
    for way, own in rates.items():
        ranks = settings.ranks if way.endswith("ranks") else 1
        against = {} if way == ARROW else {ARROW: rates[ARROW]}
        if ranks > 1:
            against = {f"{SCHEMA}, 1 rank": rates[f"{SCHEMA}, 1 rank"]}
        yield from records_of(BENCHMARK, "1000 rows/s", [Sample(way, own, against, ranks, {"way": way})])
        memory = [one["mib"] for one in told[way]]
        yield from records_of(BENCHMARK, "MiB", [Sample(f"{way}, memory", memory, {}, ranks, {"memory of": way})])


def make_page(kept: Sequence[Record], ranks: int) -> Report:
    """The whole report."""
    found = Found(kept)
    speed_up = found.ratio(f"{SCHEMA}, 1 rank", way=f"{SCHEMA}, {ranks} ranks")
    wanted = LEAST_SPEED_UP * ranks / 2
    targets = [at_least(f"{ranks} ranks / one rank", f"≥ {wanted:g}", [(SCHEMA, speed_up)], wanted)]
    rates = [record for record in found.records if "way" in record.config]
    memory = [record for record in found.records if "memory of" in record.config]
    tables = [numbers(rates, {"of": "way"}), numbers(memory, {"of": "memory of"})]
    return Report("Tables", SUMMARY, targets, [Section("Rows and memory", [], [], tables)])


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="beside one (default: 2)")
    parser.add_argument("--rows", type=int, default=10_000_000, metavar="N", help="of the table (default: ten million)")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    check_mpirun()
    check_ranks([args.ranks], oversubscribe=True)
    settings = Settings(args.ranks, 20_000 if args.quick else args.rows)
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="tables-") as name:
            folder = Path(name)
            tell("writing the table")
            write_table(folder, settings.rows)
            measure(SCHEMA, 1, folder)  # what `shard` needs
            ways: dict[str, Callable[[], Any]] = {
                ARROW: partial(measure, ARROW, 1, folder),
                f"{SCHEMA}, 1 rank": partial(measure, SCHEMA, 1, folder),
                f"{SCHEMA}, {args.ranks} ranks": partial(measure, SCHEMA, args.ranks, folder),
                SHARD: partial(measure, SHARD, 1, folder),
            }
            results.add("reading", records(settings, results.turns("reading", ways, settings.passes)))
        return results.conclude(make_page(results.records, args.ranks), args.strict)


if __name__ == "__main__":
    run_main(main)
