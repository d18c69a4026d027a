"""What a step costs on the host beside its computing: an empty model's steps, by part, beside Keras `fit`.

python benchmarks/host_work.py            # three minutes on two cores
python benchmarks/host_work.py --quick    # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from host.page import BENCHMARK, WAYS, make_page, records
from support.launch import Ranks, check_mpirun, working_parent
from support.results import open_results
from support.usage import make_parser, run_main, tell


@dataclass(frozen=True)
class Settings:
    """How much is measured: steps of each job, there and back so many times, each for so many seconds at most."""

    steps: int = 8000
    passes: int = 4
    limit_secs: float = 180.0


def run(way: str, settings: Settings, parent: Path) -> dict[str, Any]:
    """One job: what it tells.

    Raises:
        RuntimeError: It failed.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="job-") as name:
        folder, out = Path(name), Path(name) / "told.json"
        words = ["-m", "host.program", "--way", way, "--steps", f"{settings.steps}", "--out", f"{out}"]
        with Ranks(1, words, folder) as started:
            started.wait(settings.limit_secs)
        told: dict[str, Any] = json.loads(out.read_text())
    tell(f"{way}: {told['wall_us']:.0f} µs a step")
    return told


def main() -> int:
    args = make_parser(__doc__, BENCHMARK).parse_args()
    settings = Settings(steps=50, passes=1) if args.quick else Settings()
    check_mpirun()
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="host-work-") as name:
            ways = {way: partial(run, way, settings, Path(name)) for way in WAYS}
            results.add("a step", records(results.turns("a step", ways, settings.passes)))
        return results.conclude(make_page(results.records), args.strict)


if __name__ == "__main__":
    run_main(main)
