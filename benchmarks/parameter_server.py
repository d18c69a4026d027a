"""Parameter servers: push and pull against memcpy and Send/Recv, asynchronous training against synchronous.

    python benchmarks/parameter_server.py               # about 10 minutes; writes benchmarks/results/parameter_server.*
    python benchmarks/parameter_server.py --quick       # tries everything once; the figures mean nothing

Needs mpirun, Horovod, 4 GB of memory and the extra package jinja2 (the report). Between two "hosts" it measures where a
private Slurm can be started: as root, with Debian's slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from parameter_servers.jobs import write_folder
from parameter_servers.launch import mpi_version
from parameter_servers.page import make_page
from parameter_servers.results import Results
from parameter_servers.settings import FULL, QUICK, Settings
from parameter_servers.targets import targets
from parameter_servers.training import measure_idle_server, measure_slow_worker, measure_training
from parameter_servers.transfers import measure_node, measure_optimizer, measure_tcp
from support import machine
from support.records import write_records
from support.report import write_report

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("hpc_train", "numpy", "mpi4py", "horovod", "tensorflow", "tensorflow-cpu", "keras")
CASES = ("node", "optimizer", "tcp", "training", "slow", "idle")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where jobs are written and removed again (default: TMPDIR)")
    parser.add_argument("--json", type=Path, default=RESULTS / "parameter_server.json", help="one JSON object a line")
    parser.add_argument("--report", type=Path, default=RESULTS / "parameter_server.html", help="the report page")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="what to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="few bytes, short jobs: only to see that all of it works")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a target is missed")
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
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # leaves no ranks and no data behind
    args = arguments()
    settings = QUICK if args.quick else FULL
    results = measure_all(settings, args.cases, args.dir)
    about = {**machine.describe(), "OMP_NUM_THREADS": 1, "mpi": mpi_version()}
    versions = machine.versions(PACKAGES)
    write_records(args.json, results.records({"machine": about}, versions))
    facts = {**about, **versions, "took": f"{time.perf_counter() - STARTED:.0f} s"}
    write_report(args.report, make_page(results, settings, facts))
    found = targets(results)
    print(*found, sep="\n")
    if args.quick:
        print("A quick run: none of these figures mean anything.")
    tell(f"wrote {args.json} and {args.report}")
    return int(args.strict and not all(target.reached for target in found))


STARTED = time.perf_counter()

if __name__ == "__main__":
    sys.exit(main())
