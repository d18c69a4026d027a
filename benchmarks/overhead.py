"""This package's training loop against loops by hand, Keras fit, tf.distribute and tf.estimator.

    python benchmarks/overhead.py                        # about 40 minutes on two cores
    python benchmarks/overhead.py --with-estimator       # tf.estimator, too: builds an environment with TensorFlow 2.15
    python benchmarks/overhead.py --peers same-flags     # some of it
    python benchmarks/overhead.py --quick                # tries everything once; the figures mean nothing

Writes records and report to benchmarks/results/overhead_<machine>_<date>. A run that was interrupted goes on where it
was. Needs mpirun, Horovod and 6 GB of memory.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from peers.measuring import measure_all, plan
from peers.models import MODELS, check_memory, write_data
from peers.page import make_page
from peers.settings import BATCH, BENCHMARK, FULL, PEERS, QUICK
from support.launch import check_mpirun, check_ranks
from support.records import Found
from support.results import open_results
from support.usage import make_parser, run_main

ESTIMATOR = "estimator"


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
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
    return parser.parse_args()


def main() -> int:
    args = arguments()
    settings = QUICK if args.quick else FULL
    ranks, models = sorted(set(args.ranks)), [MODELS[name] for name in dict.fromkeys(args.models)]
    check_ranks(ranks, args.oversubscribe, one_node=True)
    check_mpirun()
    check_memory(models, max(ranks))
    peers = [*args.peers, *([ESTIMATOR] if args.with_estimator else [])]
    units = plan(models, ranks, peers, settings.thin)
    about = {**asdict(settings), "batch": BATCH, "units": [unit.name for unit in units]}
    with open_results(args, BENCHMARK, about) as results:
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="overhead-") as name:
            write_data(Path(name), models, settings.rows)
            measure_all(units, Path(name), settings, results)
        return results.conclude(make_page(Found(results.records), settings), args.strict)


if __name__ == "__main__":
    run_main(main)
