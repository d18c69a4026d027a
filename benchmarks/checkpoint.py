"""What a checkpoint costs: stall, write and restore, against memcpy, tf.train.Checkpoint and Keras's files.

    python benchmarks/checkpoint.py --dir DIR           # about 12 minutes; into benchmarks/results/checkpoint_…
    python benchmarks/checkpoint.py --quick             # tries everything once; the figures mean nothing

Needs 6 GB of memory and of disk, and the extra package jinja2 (the report).
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

from checkpoints.cases import Settings, measure
from checkpoints.models import Size, make_subject
from checkpoints.page import make_page
from checkpoints.results import BENCHMARK, Results
from support import machine
from support.results import add_arguments, open_results
from support.usage import run_main

PACKAGES = ("hpc_train", "numpy", "h5py", "tensorflow", "tensorflow-cpu", "keras")
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where checkpoints are written and removed again (default: TMPDIR)")
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES], help="of state (default: all)")
    add_arguments(parser, BENCHMARK)
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> Settings:
    sizes = QUICK_SIZES if args.quick else SIZES
    chosen = tuple(size for size in sizes if args.sizes is None or size.name in args.sizes)
    if args.quick:
        return Settings(chosen, step_size="67 MB", step_secs=0.05, step_rounds=1, quick=True)
    return Settings(chosen, step_size="67 MB", step_secs=4.0, step_rounds=4)


def measure_all(settings: Settings, parent: Path | None) -> tuple[Results, str]:
    """Everything, one size after the other; and the kind of file system that it was written to."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    results = Results()
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        for i, size in enumerate(settings.sizes):
            tell(f"state of {size.name}")
            own = Path(folder) / str(i)
            own.mkdir()
            measure(make_subject(size), settings, own, results)
            gc.collect()
        return results, machine.file_system(Path(folder))


def tell(words: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {words}", file=sys.stderr, flush=True)


def main() -> int:
    args = arguments()
    settings = settings_of(args)
    chosen = {"sizes": [size.name for size in settings.sizes]}
    with open_results(args, BENCHMARK, chosen, PACKAGES, resumes=False) as folder:
        results, file_system = measure_all(settings, args.dir)
        more = {"file_system": file_system, "tensorflow_threads": 1}
        folder.add("all", list(results.records({"machine": {**folder.machine, **more}}, folder.versions)))
        facts = {**more, "took": f"{time.perf_counter() - STARTED:.0f} s"}
        return folder.conclude(make_page(results, settings, facts), args.strict)


STARTED = time.perf_counter()

if __name__ == "__main__":
    run_main(main)
