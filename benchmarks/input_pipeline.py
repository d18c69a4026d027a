"""How fast rows get from HDF5 shards into batches, against memcpy, TFRecord, h5py and from_generator.

    python benchmarks/input_pipeline.py                 # about 9 minutes; into benchmarks/results/input_pipeline_…
    python benchmarks/input_pipeline.py --quick         # tries everything once; the figures mean nothing

Needs the extra packages jinja2 (the report) and hdf5plugin (blosc; left out where it is missing).
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from inputs.cases import Settings, measure_cold, measure_generators, measure_warm
from inputs.files import LAYOUTS, Data, write
from inputs.page import make_page
from inputs.results import BENCHMARK, Results
from inputs.rows import ROW_KINDS
from inputs.step import measure_step
from support.results import add_arguments, open_results
from support.usage import run_main

PACKAGES = ("hpc_train", "numpy", "h5py", "hdf5plugin", "tensorflow", "tensorflow-cpu", "keras")
STEP_ROWS = "3 KB"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=256, help="of rows of each size (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="A B B A rounds, two repeats each (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the data is made and removed again (default: TMPDIR)")
    add_arguments(parser, BENCHMARK)
    return parser.parse_args()


def settings_of(args: argparse.Namespace) -> Settings:
    threads = min(2, len(os.sched_getaffinity(0)))
    if args.quick:
        return Settings(2, rounds=1, cold_rounds=1, limit_secs=0.01, threads=threads, steps=10, quick=True)
    return Settings(args.megabytes, args.rounds, min(2, args.rounds), limit_secs=0.2, threads=threads, steps=200)


def measure(settings: Settings, parent: Path | None) -> tuple[Results, list[tuple[str, ...]]]:
    """Everything, one row kind after the other; and a line for each kind about its data."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    results, all_data, files = Results(), [], []
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        for kind in ROW_KINDS:
            if settings.quick:
                kind = replace(kind, batch=kind.batch // 8)
            tell(f"rows of {kind.name}: making the data")
            data = write(Path(folder) / str(kind.image_bytes), kind, settings.megabytes)
            files.append(_file_words(data))
            results.notes += [f"{layout}, {kind.name}: {why}." for layout, why in data.missing.items()]
            tell(f"rows of {kind.name}: warm page cache")
            measure_warm(data, settings, results)
            if kind.name == STEP_ROWS:
                tell(f"rows of {kind.name}: fed to a training step")
                measure_step(data, settings, results)
            tell(f"rows of {kind.name}: cold page cache")
            measure_cold(data, settings, results)
            data.keep("contiguous")
            gc.collect()
            all_data.append(data)
        tell("from_generator")
        for data in all_data:
            measure_generators(data, settings, results)
    return results, files


def _file_words(data: Data) -> tuple[str, ...]:
    shape = " x ".join(map(str, data.kind.shape))
    smaller = (f"{data.compression[name]:.2f}" if name in data.compression else "not there" for name in LAYOUTS[2:])
    megabytes = data.steps * data.kind.batch_bytes / 1e6
    return (data.kind.name, f"uint8 {shape}", f"{len(data.images)}", f"{data.kind.batch}", f"{megabytes:.0f}", *smaller)


def tell(words: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {words}", file=sys.stderr, flush=True)


def main() -> int:
    args = arguments()
    settings = settings_of(args)
    chosen = {"megabytes": settings.megabytes, "rounds": settings.rounds}
    with open_results(args, BENCHMARK, chosen, PACKAGES, resumes=False) as folder:
        results, files = measure(settings, args.folder)
        config = {"megabytes": settings.megabytes, "limit_secs": settings.limit_secs, "machine": folder.machine}
        folder.add("all", list(results.records(config, folder.versions)))
        facts = {"TensorFlow intra-op threads": 1, "took": f"{time.perf_counter() - STARTED:.0f} s"}
        code = folder.conclude(make_page(results, settings, facts, files), args.strict)
    print(*results.notes, sep="\n")
    return code


STARTED = time.perf_counter()

if __name__ == "__main__":
    run_main(main)
