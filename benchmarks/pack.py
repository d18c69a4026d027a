"""What a pack saves: calls of ranks on the shared folder of an environment; and how long they take to start.

python benchmarks/pack.py             # seven minutes and 5 GB of disk: it packs this whole environment
python benchmarks/pack.py --quick     # tries everything once, with a small environment; the figures mean nothing
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from packed.calls import at_once, check_strace, of_ranks, start_secs
from packed.environments import Environment, light, planned, shared_folders, unpacked
from packed.page import BENCHMARK, PACKED, RANK, SECS, SHARED, STARTS, make_page, records
from support.launch import check_mpirun, working_parent
from support.results import open_results
from support.usage import make_parser, run_main


@dataclass(frozen=True)
class Settings:
    """How much is measured, and what ranks and starts import."""

    ranks: int = 2
    starts: int = 64
    passes: int = 4
    rank: str = "import tensorflow, keras, hpc_train.training.trainer, mpi4py.MPI"
    start: str = "import hpc_train.config.job"


def main() -> int:
    args = make_parser(__doc__, BENCHMARK).parse_args()
    settings = Settings()
    if args.quick:
        small = "import hpc_train.telemetry.status"
        settings = Settings(starts=4, passes=1, rank=small, start=small)
    check_mpirun()
    check_strace()
    with (
        open_results(args, BENCHMARK, asdict(settings)) as results,
        tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="pack-") as name,
    ):
        parent = Path(name)
        venv = light(parent / "light") if args.quick else Path(sys.prefix)
        plan = planned(venv, parent)
        packed, told = unpacked(plan, parent)
        ways, folders = {SHARED: Environment(venv), PACKED: packed}, shared_folders(plan)
        for unit, own in (("GB", {"its size": told["bytes"] / 1e9}), ("s", {w: told[w] for w in ("pack", "unpack")})):
            results.add(f"the pack, {unit}", records("the pack", unit, {w: [n] for w, n in own.items()}, 1))
        for way in ways.values():
            start_secs(way, settings.rank, settings.ranks, parent)  # its files are in memory, and compiled
        begin = {way: partial(start_secs, one, settings.rank, settings.ranks, parent) for way, one in ways.items()}
        results.add(SECS, records(SECS, "s", results.turns(SECS, begin, settings.passes), settings.ranks))
        for what, counted, program, number in (
            (RANK, of_ranks, settings.rank, settings.ranks),
            (STARTS, at_once, settings.start, settings.starts),
        ):
            count = {way: partial(counted, one, program, number, folders, parent) for way, one in ways.items()}
            found = {way: run for way, (run,) in results.turns(what, count, 1).items()}
            shared = {way: [run["shared"]] for way, run in found.items()}
            anywhere = {way: run["all"] for way, run in found.items()}
            results.add(what, records(what, "calls", shared, number, anywhere))
        return results.conclude(make_page(results.records), args.strict)


if __name__ == "__main__":
    run_main(main)
