"""Parameter servers: push and pull against memcpy and Send/Recv, asynchronous training against synchronous.

    python benchmarks/parameter_server.py               # about 10 minutes
    python benchmarks/parameter_server.py --quick       # tries everything once; the figures mean nothing

Needs mpirun, Horovod and 4 GB of memory. Between two "hosts" it measures where a private Slurm can be started: as root,
with Debian's slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from parameter_servers.cases import CASES
from parameter_servers.page import make_page
from parameter_servers.settings import BENCHMARK, FULL, QUICK, Settings
from peers.models import MLP, write_data
from support.launch import check_mpirun
from support.records import Found
from support.results import Results, open_results
from support.usage import make_parser, run_main, tell


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="what to measure (default: all)")
    return parser.parse_args()


def measure_all(settings: Settings, cases: Sequence[str], parent: Path | None, results: Results) -> None:
    """Everything that `cases` name, one after the other."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="server-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if {"training", "slow", "idle"} & set(cases):
            write_data(folder, [MLP], settings.training.rows)
        for case, measure in CASES.items():
            if case in cases:
                tell(case)
                measure(settings, folder, results)


def main() -> int:
    args = arguments()
    settings = QUICK if args.quick else FULL
    check_mpirun()
    with open_results(args, BENCHMARK, {**asdict(settings), "cases": args.cases}) as results:
        measure_all(settings, args.cases, args.dir, results)
        return results.conclude(make_page(Found(results.records), settings), args.strict)


if __name__ == "__main__":
    run_main(main)
