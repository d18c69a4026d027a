"""What a step costs on the host beside its computing: an empty model's steps, by part, beside Keras `fit`.

python benchmarks/host_work.py            # three minutes on two cores
python benchmarks/host_work.py --against DIR    # beside another checkout of the package, too
python benchmarks/host_work.py --quick    # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from host.page import BENCHMARK, OTHER, THIS, WAYS, make_page, records
from support.launch import REPOSITORY, Ranks, check_mpirun, working_parent
from support.results import open_results
from support.usage import add_against, check_against, make_parser, run_main, tell


@dataclass(frozen=True)
class Settings:
    """How much is measured: steps of each job, there and back so many times, each for so many seconds at most."""

    steps: int = 8000
    passes: int = 4
    limit_secs: float = 180.0
    against: str | None = None


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    add_against(parser)
    args = parser.parse_args()
    check_against(args)
    return args


def run(way: str, settings: Settings, other: Path | None, parent: Path) -> dict[str, Any]:
    """One job: what it tells; OTHER is of the checkout `other`.

    Raises:
        RuntimeError: It failed.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="job-") as name:
        folder, out = Path(name), Path(name) / "told.json"
        words = ["host.program", "--way", way] if way in WAYS else ["host.plain"]
        env = {"PYTHONPATH": os.pathsep.join([str(other), str(REPOSITORY / "benchmarks")])} if way == OTHER else {}
        with Ranks(1, ["-m", *words, "--steps", f"{settings.steps}", "--out", f"{out}"], folder, env) as started:
            started.wait(settings.limit_secs)
        told: dict[str, Any] = json.loads(out.read_text())
    tell(f"{way}: {told['wall_us']:.0f} µs a step")
    return told


def main() -> int:
    args = arguments()
    against = args.against and args.against.name
    settings = Settings(steps=50, passes=1, against=against) if args.quick else Settings(against=against)
    compared = (*WAYS, THIS, OTHER) if args.against else WAYS
    check_mpirun()
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="host-work-") as name:
            other = args.against and args.against.resolve()
            ways = {way: partial(run, way, settings, other, Path(name)) for way in compared}
            results.add("a step", records(results.turns("a step", ways, settings.passes)))
        return results.conclude(make_page(results.records), args.strict)


if __name__ == "__main__":
    run_main(main)
