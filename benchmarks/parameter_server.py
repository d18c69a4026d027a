"""Parameter servers: push and pull against memcpy and Send/Recv, asynchronous training against synchronous.

    python benchmarks/parameter_server.py               # about 10 minutes; into benchmarks/results/parameter_server_…
    python benchmarks/parameter_server.py --quick       # tries everything once; the figures mean nothing

Needs mpirun, Horovod, 4 GB of memory and the extra package jinja2 (the report). Between two "hosts" it measures where a
private Slurm can be started: as root, with Debian's slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from parameter_servers.jobs import write_folder
from parameter_servers.page import make_page
from parameter_servers.results import BENCHMARK, Results
from parameter_servers.settings import FULL, QUICK, Settings
from parameter_servers.training import measure_idle_server, measure_slow_worker, measure_training
from parameter_servers.transfers import measure_node, measure_optimizer, measure_tcp
from support.results import add_arguments, open_results
from support.usage import run_main

PACKAGES = ("hpc_train", "numpy", "mpi4py", "horovod", "tensorflow", "tensorflow-cpu", "keras")
CASES = ("node", "optimizer", "tcp", "training", "slow", "idle")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where jobs are written and removed again (default: TMPDIR)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="what to measure (default: all)")
    add_arguments(parser, BENCHMARK)
    args = parser.parse_args()
    if args.dir is not None and not args.dir.is_dir():
        parser.error(f"--dir: {args.dir} is not a folder")
    return args


def measure_all(settings: Settings, cases: list[str], parent: Path | None) -> Results:
    """Everything that `cases` name, one after the other."""
    results = Results()
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        folder.chmod(0o755)
        if {"training", "slow", "idle"} & set(cases):
            write_folder(folder, settings.training.rows)
        measures = {
            "node": lambda: measure_node(settings, folder, results),
            "optimizer": lambda: measure_optimizer(settings, folder, results),
            "tcp": lambda: measure_tcp(settings, folder, results),
            "training": lambda: measure_training(settings, folder, results, tell),
            "slow": lambda: measure_slow_worker(settings, folder, results, tell),
            "idle": lambda: measure_idle_server(settings, folder, results),
        }
        for case in CASES:
            if case in cases:
                tell(case)
                measures[case]()
    return results


def tell(words: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {words}", file=sys.stderr, flush=True)


def main() -> int:
    args = arguments()
    settings = QUICK if args.quick else FULL
    with open_results(args, BENCHMARK, {"cases": args.cases}, PACKAGES, resumes=False) as folder:
        results = measure_all(settings, args.cases, args.dir)
        folder.add("all", list(results.records({"machine": folder.machine}, folder.versions)))
        facts = {"took": f"{time.perf_counter() - STARTED:.0f} s"}
        return folder.conclude(make_page(results, settings, facts), args.strict)


STARTED = time.perf_counter()

if __name__ == "__main__":
    run_main(main)
