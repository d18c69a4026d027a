"""How fast rows get from HDF5 shards into batches, against memcpy, TFRecord, h5py and from_generator.

    python benchmarks/input_pipeline.py                 # about 9 minutes
    python benchmarks/input_pipeline.py --quick         # tries everything once; the figures mean nothing

Needs the extra package hdf5plugin (blosc; left out where it is missing).
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from inputs.cases import BENCHMARK, Settings, measure_cold, measure_generators, measure_step, measure_warm
from inputs.data import LAYOUTS, ROW_KINDS, Data, write
from inputs.page import make_page
from support.records import Found
from support.results import Results, open_results
from support.usage import make_parser, run_main, tell

STEP_ROWS = "3 KB"


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--megabytes", type=float, default=256, help="of rows of each size (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="A B B A rounds, two repeats each (default %(default)s)")
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> Settings:
    threads = min(2, len(os.sched_getaffinity(0)))
    if args.quick:
        return Settings(2, rounds=1, cold_rounds=1, limit_secs=0.01, threads=threads, steps=10, quick=True)
    return Settings(args.megabytes, args.rounds, min(2, args.rounds), limit_secs=0.2, threads=threads, steps=200)


def measure(settings: Settings, parent: Path | None, results: Results) -> list[tuple[str, ...]]:
    """Everything, one row kind after the other; returns a line for each kind about its data."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    all_data, files = [], []
    with tempfile.TemporaryDirectory(dir=parent, prefix="input-") as folder:
        for kind in ROW_KINDS:
            if settings.quick:
                kind = replace(kind, batch=kind.batch // 8)
            tell(f"rows of {kind.name}: making the data")
            data = write(Path(folder) / str(kind.image_bytes), kind, settings.megabytes)
            files.append(_file_words(data))
            for layout, why in data.missing.items():
                results.leave_out(f"{layout}, {kind.name}", why)
            tell(f"rows of {kind.name}: warm page cache")
            results.add(kind.name, measure_warm(data, settings))
            if kind.name == STEP_ROWS:
                tell(f"rows of {kind.name}: fed to a training step")
                results.add("training step", measure_step(data, settings))
            tell(f"rows of {kind.name}: cold page cache")
            name = f"{kind.name}, cold page cache"
            results.add(name, results.attempt(name, lambda data=data: list(measure_cold(data, settings))) or ())
            data.keep("contiguous")
            gc.collect()
            all_data.append(data)
        tell("from_generator")
        for data in all_data:
            results.add(f"{data.kind.name}, from_generator", measure_generators(data, settings))
    return files


def _file_words(data: Data) -> tuple[str, ...]:
    shape = " x ".join(map(str, data.kind.shape))
    smaller = (f"{data.compression[name]:.2f}" if name in data.compression else "not there" for name in LAYOUTS[2:])
    megabytes = data.steps * data.kind.batch_bytes / 1e6
    return (data.kind.name, f"uint8 {shape}", f"{len(data.images)}", f"{data.kind.batch}", f"{megabytes:.0f}", *smaller)


def main() -> int:
    args = arguments()
    settings = settings_of(args)
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        files = measure(settings, args.dir, results)
        page = make_page(Found(results.records), settings, {"TensorFlow intra-op threads": 1}, files)
        return results.conclude(page, args.strict)


if __name__ == "__main__":
    run_main(main)
