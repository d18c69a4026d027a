"""How fast texts and rows of different lengths get from HDF5 shards into batches, against h5py and TFRecord.

python benchmarks/texts.py                 # about 3 minutes
python benchmarks/texts.py --quick         # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

from inputs.texts import BATCH, BENCHMARK, SEQUENCES, SHARDS, Settings, kinds, make_page, measure, padding
from support.records import Found
from support.results import open_results
from support.usage import make_parser, run_main, tell


def main() -> int:
    args = make_parser(__doc__, BENCHMARK).parse_args()
    threads = min(2, len(os.sched_getaffinity(0)))
    settings = (
        Settings(4 * SHARDS * BATCH, 1, 0.01, threads)
        if args.quick
        else Settings(100 * SHARDS * BATCH, 3, 1.0, threads)
    )
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="texts-") as folder:
            for rows in kinds(Path(folder), settings.rows):
                tell(rows.kind)
                results.add(rows.kind, measure(rows, settings))
                if rows.kind == SEQUENCES:
                    results.add("padding", padding(rows))
        return results.conclude(make_page(Found(results.records)), args.strict)


if __name__ == "__main__":
    run_main(main)
