"""Models larger than a rank: what each of the ways costs in time, and saves in memory.

    python benchmarks/model_parallel.py                  # all cases; fifteen minutes on two cores, and 11 GB
    python benchmarks/model_parallel.py --cases zero     # one of them
    python benchmarks/model_parallel.py --quick          # tries everything once; the figures mean nothing

Writes records and report to benchmarks/results/model_parallel_<machine>_<date>. A run that was interrupted goes on
where it was. Needs mpirun.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from divided import block, bounded, embedding, restore, zero
from support.launch import check_mpirun, working_parent
from support.page import Report
from support.records import Found
from support.results import open_results
from support.usage import make_parser, run_main

BENCHMARK = "model_parallel"
CASES = {"zero": zero, "embedding": embedding, "block": block, "bounded": bounded, "restore": restore}
"""Modules that measure and show one thing each: records, section and targets."""


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="default: all")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    cases = {name: CASES[name] for name in dict.fromkeys(args.cases)}
    check_mpirun()
    with open_results(args, BENCHMARK, {"cases": list(cases), "quick": args.quick}) as results:
        with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="divided-") as name:
            for case, module in cases.items():
                results.add(case, module.measured(results, Path(name), args.quick))
        found = Found(results.records)
        targets = [target for module in cases.values() for target in module.targets(found)]
        sections = [module.section(found) for module in cases.values()]
        return results.conclude(
            Report("Models larger than a rank", (__doc__.splitlines()[0],), targets, sections), args.strict
        )


if __name__ == "__main__":
    run_main(main)
