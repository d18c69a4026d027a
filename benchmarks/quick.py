"""A guard against slowing down: the ratios that this package promises, measured in less than 3 minutes on two cores.

    python benchmarks/quick.py                          # make bench-quick
    python benchmarks/quick.py --parts input checkpoint
    python benchmarks/quick.py --parts emulated         # a minute more: eight ranks have to start

What a change has cost, or won:

    python benchmarks/quick.py --json before.jsonl      # and after it --json after.jsonl
    hpc-train report --compare before.jsonl after.jsonl

Prints each ratio beside its target, and at the end what falls short. It measures a little of what the other benchmarks
measure, with their code and their targets, and leaves nothing behind: for figures to quote, run those. A part that
cannot run here is named, with the reason. Needs 4 GB of memory; mpirun and Horovod for most parts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from guard.parts import DEFAULT, PARTS
from guard.running import run_all, run_apart
from guard.showing import Found, ending, table
from support.records import Record, write_records
from support.usage import EXIT_MISSED, UsageError, run_main

from hpc_train.cli.terminal import console, show

BENCHMARK = "quick"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(DEFAULT), help=f"default: {' '.join(DEFAULT)}"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 where a target is missed, or a part could not run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there, one JSON object a line")
    parser.add_argument("--dir", type=Path, help="where data is written and removed again (default: TMPDIR)")
    args = parser.parse_args()
    if args.dir is not None and not args.dir.is_dir():
        raise UsageError(f"--dir: {args.dir} is not a folder")
    if args.json is not None and args.json.is_dir():
        raise UsageError(f"--json: {args.json} is a folder; give the name of a file")
    return args


def tell(words: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {words}", file=sys.stderr, flush=True)


def records(found: Found) -> Iterator[Record]:
    """All that was measured, as of one benchmark."""
    for part, ran in found.items():
        yield from (replace(one, benchmark=BENCHMARK, case=f"{part}: {one.case}") for one in ran.measured.records)


def main() -> int:
    args = arguments()
    parts = [part for part in PARTS if part in args.parts]
    found = run_all(parts, lambda part: run_apart(part, args.dir), tell)
    if args.json is not None:
        write_records(args.json, records(found))
    show(console(), table(found))
    print("", *ending(found, time.perf_counter() - STARTED), sep="\n", flush=True)
    return EXIT_MISSED if args.strict and not all(ran.measured.reached for ran in found.values()) else 0


STARTED = time.perf_counter()

if __name__ == "__main__":
    run_main(main)
