"""How long a job takes from its launch to its first step, and from the death of a rank to the next step.

python benchmarks/start.py                     # two minutes on two cores
python benchmarks/start.py --against DIR       # beside another checkout, in turns
python benchmarks/start.py --quick             # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starts.jobs import Checkout, fit, restart, start
from starts.page import BENCHMARK, FIT, OTHER, RESTART, START, THIS, make_page, records
from support.launch import check_mpirun, check_ranks, working_parent
from support.results import open_results
from support.usage import add_against, check_against, make_parser, run_main


@dataclass(frozen=True)
class Settings:
    """How much is measured: of so many ranks, there and back so many times."""

    ranks: int
    passes: int = 5
    against: str | None = None


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="default: 2")
    add_against(parser)
    args = parser.parse_args()
    check_against(args)
    return args


def main() -> int:
    args = arguments()
    check_mpirun()
    check_ranks([args.ranks], oversubscribe=True)
    other = args.against and args.against.resolve()
    settings = Settings(args.ranks, 1 if args.quick else 5, args.against and args.against.name)
    checkouts = {THIS: Checkout(), **({OTHER: Checkout(other)} if other else {})}
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="start-") as name:
            parent = Path(name)
            starts: dict[str, Callable[[], Any]] = {
                way: partial(start, checkout, args.ranks, parent) for way, checkout in checkouts.items()
            }
            told = results.turns(START, {**starts, FIT: partial(fit, parent)}, settings.passes)
            results.add(START, records(START, args.ranks, told))
            again = {way: partial(restart, checkout, args.ranks, parent) for way, checkout in checkouts.items()}
            told = results.turns(RESTART, again, settings.passes)
            results.add(RESTART, records(RESTART, args.ranks, told))
        return results.conclude(make_page(results.records), args.strict)


if __name__ == "__main__":
    run_main(main)
