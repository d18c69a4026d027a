"""This package's training loop against loops by hand, Keras fit, tf.distribute and tf.estimator.

    python benchmarks/overhead.py                        # about 40 minutes on two cores
    python benchmarks/overhead.py --with-estimator       # tf.estimator, too: builds an environment with TensorFlow 2.15
    python benchmarks/overhead.py --peers same-flags     # some of it
    python benchmarks/overhead.py --quick                # tries everything once; the figures mean nothing

Writes records and report to benchmarks/results/overhead_<machine>_<date>. A run that was interrupted goes on where it
was. Needs mpirun, Horovod, 6 GB of memory and the extra package jinja2 (the report).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from peers.measuring import Runner, measure_all, plan
from peers.memory import check_memory
from peers.models import MODELS, write_data
from peers.page import make_page
from peers.settings import BATCH, BENCHMARK, FULL, PEERS, QUICK
from support.launch import check_mpirun, check_ranks
from support.results import add_arguments, open_results
from support.usage import run_main

ESTIMATOR = "estimator"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="default: all")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="default: 1 2")
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=[peer for peer in PEERS if peer != ESTIMATOR],
        default=[peer for peer in PEERS if peer != ESTIMATOR],
        help="what to compare with (default: all); horovod: with default flags, and weak scaling",
    )
    parser.add_argument(
        "--with-estimator",
        action="store_true",
        help="tf.estimator, too; an environment for TensorFlow 2.15 (1 GB) is built in the user's cache, once",
    )
    parser.add_argument("--oversubscribe", action="store_true", help="allow more ranks than there are cores")
    parser.add_argument("--dir", type=Path, help="where jobs are written and removed again (default: TMPDIR)")
    add_arguments(parser, BENCHMARK)
    args = parser.parse_args()
    if args.dir is not None and not args.dir.is_dir():
        parser.error(f"--dir: {args.dir} is not a folder")
    return args


def tell(words: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {words}", file=sys.stderr, flush=True)


def main() -> int:
    args = arguments()
    settings = QUICK if args.quick else FULL
    ranks, models = sorted(set(args.ranks)), [MODELS[name] for name in dict.fromkeys(args.models)]
    check_ranks(ranks, args.oversubscribe, one_node=True)
    check_mpirun()
    check_memory(models, max(ranks))
    peers = [*args.peers, *([ESTIMATOR] if args.with_estimator else [])]
    units = plan(models, ranks, peers, settings.thin)
    with open_results(args, BENCHMARK, {**asdict(settings), "batch": BATCH}) as results:
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="overhead-") as name:
            folder = Path(name)
            if any(results.finished(unit.name) is None for unit in units):
                write_data(folder, models, settings.rows)
            failed = measure_all(units, Runner(folder, settings, tell), results)
        return results.conclude(make_page(results.records, settings, results.left_out), args.strict, bool(failed))


STARTED = time.perf_counter()

if __name__ == "__main__":
    run_main(main)
