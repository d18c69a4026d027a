"""What became slower or faster between two runs of a benchmark, and by how much, beyond their spread.

    python benchmarks/compare.py benchmarks/results/overhead_amd-epyc-2-cores_2026-11-21 runs/benchmark_overhead-42
    python benchmarks/compare.py before.jsonl after.jsonl --markdown       # for a pull request

Each is a results folder, or a file that a benchmark wrote by --json; the earlier run comes first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from support.comparison import compare, read_measured
from support.page import Report, Section, Table, as_text
from support.usage import run_main


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown instead of lines")
    args = parser.parse_args()
    found = compare(read_measured(args.before), read_measured(args.after))
    warnings = [f"warning: {warning}" for warning in found.warnings]
    if args.markdown:
        table = Table(("", "by", "number", "before", "after"), list(found.rows), names=3)
        sections = [Section("Numbers", [found.summary], tables=[table]), Section("Beside them", found.others)]
        print(as_text(Report(found.title, warnings, [], sections), "")[0], end="")
        return 0
    print(found.title, *warnings, found.summary, sep="\n")
    for verdict, by, name, before, after in found.rows:
        print(f"{verdict}, {by}: {name}: {before}, then {after}")
    print(*found.others, sep="\n")
    return 0


if __name__ == "__main__":
    run_main(main)
