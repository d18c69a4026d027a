"""What a checkpoint costs: stall, write and restore, against memcpy, tf.train.Checkpoint and Keras's files.

    python benchmarks/checkpoint.py --dir DIR           # about 12 minutes; DIR: a folder on the disk to be measured
    python benchmarks/checkpoint.py --quick             # tries everything once; the figures mean nothing

Needs 6 GB of memory and of disk.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

from checkpoints.cases import BENCHMARK, Settings, measure
from checkpoints.contestants import Size, make_subject
from checkpoints.page import make_page
from support import machine
from support.records import Found
from support.results import Results, open_results
from support.usage import make_parser, run_main, tell

SIZES = (
    Size("1 MB", layers=3, width=253, batch=64, rounds=15),
    Size("67 MB", layers=12, width=742, batch=64, rounds=6),
    Size("1 GB", layers=12, width=2885, batch=8, rounds=2),
)
QUICK_SIZES = (
    Size("1 MB", layers=2, width=8, batch=4, rounds=1),
    Size("67 MB", layers=3, width=8, batch=4, rounds=1),
    Size("1 GB", layers=4, width=8, batch=4, rounds=1),
)


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES], help="of state (default: all)")
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> Settings:
    sizes = QUICK_SIZES if args.quick else SIZES
    chosen = tuple(size for size in sizes if args.sizes is None or size.name in args.sizes)
    if args.quick:
        return Settings(chosen, step_size="67 MB", step_secs=0.05, step_rounds=1)
    return Settings(chosen, step_size="67 MB", step_secs=4.0, step_rounds=4)


def measure_all(settings: Settings, parent: Path | None, results: Results) -> str:
    """Everything, one size after the other; returns the kind of file system that it was written to."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory(dir=parent, prefix="checkpoint-") as folder:
        for size in settings.sizes:
            tell(f"state of {size.name}")
            own = Path(folder) / f"{len(results.records)}"
            own.mkdir()
            results.add(size.name, measure(make_subject(size), settings, own))
            gc.collect()
        return machine.file_system(Path(folder))


def main() -> int:
    args = arguments()
    settings = settings_of(args)
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        facts = {"file_system": measure_all(settings, args.dir, results), "tensorflow_threads": 1}
        page = make_page(Found(results.records), [size.name for size in settings.sizes], facts)
        return results.conclude(page, args.strict)


if __name__ == "__main__":
    run_main(main)
