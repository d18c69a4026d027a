"""After how many records a rank that is slowed by 30 % is named slow, and how often one of equal ranks is.

python benchmarks/slow_rank.py            # 5 minutes on two cores, with nothing else on them
python benchmarks/slow_rank.py --quick    # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slowness.page import BENCHMARK, EQUAL, RANKS, RECORDS, SLOW, SLOWED, SLOWER, STEPS, make_page, records
from support.launch import Ranks, Started, check_mpirun, environment, working_parent
from support.results import open_results
from support.usage import make_parser, run_main, tell

OTHER_WORK = "while True: sum(range(10**5))"
LIMIT_SECS = 300.0


@dataclass(frozen=True)
class Settings:
    """How much is measured: runs with a slowed rank, and of equal ones, of so many records."""

    slowed: int = 8
    equal: int = 10
    records: int = RECORDS


def run(way: str, records: int, parent: Path) -> dict[str, Any]:
    """One job: at which record each rank was named, and what a step took each.

    Raises:
        RuntimeError: It failed.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="job-") as name, ExitStack() as beside:
        folder = Path(name)
        if way == EQUAL:
            loop = [sys.executable, "-c", OTHER_WORK]
            beside.enter_context(Started("other work", loop, folder, environment(), folder / "other.log"))
        words = ["--slower", f"{SLOWER if way == SLOWED else 0}", "--steps", f"{records * STEPS}", "--job-dir", "job"]
        with Ranks(RANKS, ["-m", "slowness.program", *words, "--record-steps", f"{STEPS}"], folder) as ranks:
            ranks.wait(LIMIT_SECS)
        lines = [json.loads(line) for line in (folder / "job" / "metrics.jsonl").read_text().splitlines()]
    named = {str(one["rank"]): one["step"] // STEPS for one in lines if one["kind"] == "slow_rank"}
    own_secs = [one["own_secs"] for one in lines if one["kind"] == "rank_times"][-1]
    tell(
        f"{way}: named {named}, rank {SLOW} takes {own_secs[SLOW] / own_secs[0]:.2f} times rank 0's {own_secs[0]:.4f} s"
    )
    return {"named": named, "own_secs": own_secs}


def main() -> int:
    args = make_parser(__doc__, BENCHMARK).parse_args()
    settings = Settings(1, 1, 3) if args.quick else Settings()
    check_mpirun()
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="slow-rank-") as name:
            told: dict[str, list[Any]] = {SLOWED: [], EQUAL: []}
            for number in range(max(settings.slowed, settings.equal)):  # in turns
                for way, count in ((SLOWED, settings.slowed), (EQUAL, settings.equal)):
                    if number < count:

                        def measure(way: str = way) -> dict[str, Any]:
                            return run(way, settings.records, Path(name))

                        told[way].append(results.once(f"{way}, {number}", measure))
            results.add("runs", records(told))
        return results.conclude(make_page(results.records), args.strict)


if __name__ == "__main__":
    run_main(main)
