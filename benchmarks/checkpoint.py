"""What a checkpoint costs: stall, write and restore, against memcpy, tf.train.Checkpoint and Keras's files.

    python benchmarks/checkpoint.py --dir DIR           # about 12 minutes; writes benchmarks/results/checkpoint.*
    python benchmarks/checkpoint.py --quick             # tries everything once; the figures mean nothing

Needs 6 GB of memory and of disk, and the extra package jinja2 (the report).
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
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
from checkpoints.results import Results
from checkpoints.targets import targets
from support import machine
from support.records import write_records
from support.report import write_report

RESULTS = Path(__file__).resolve().parent / "results"
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
    parser.add_argument("--json", type=Path, default=RESULTS / "checkpoint.json", help="one JSON object a line")
    parser.add_argument("--report", type=Path, default=RESULTS / "checkpoint.html", help="the report page")
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES], help="of state (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny models, one round: only to see that all of it works")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a target is missed")
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
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # leaves no data behind
    args = arguments()
    settings = settings_of(args)
    results, file_system = measure_all(settings, args.dir)
    about = {**machine.describe(), "file_system": file_system, **machine.thread_settings(), "tensorflow_threads": 1}
    versions = machine.versions(PACKAGES)
    write_records(args.json, results.records({"machine": about}, versions))
    facts = {**about, **versions, "took": f"{time.perf_counter() - STARTED:.0f} s"}
    write_report(args.report, make_page(results, settings, facts))
    found = targets(results, settings)
    print(*found, sep="\n")
    if args.quick:
        print("A quick run: none of these figures mean anything.")
    tell(f"wrote {args.json} and {args.report}")
    return int(args.strict and not all(target.reached for target in found))


STARTED = time.perf_counter()

if __name__ == "__main__":
    sys.exit(main())
