"""One rank of the loop of plain_loop.py, with a process of its own.

    mpirun -np 2 python -m peers.plain_program --model "MLP 1.9 M" --folder DIR --warm-up 100 --steps 1000 --out DIR

Horovod's and MPI's settings are those of the environment. --alone: no allreduce, and no MPI; several ranks then run at
once, each by itself, and go on until the last one has measured.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from peers.models import build_model, load_batches
from peers.plain_loop import PlainLoop, dataset_of
from peers.settings import BATCH
from peers.told import Told, write_told

WAIT_SECS = 60.0
MORE_STEPS = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="with the shards")
    parser.add_argument("--warm-up", type=int, required=True, help="steps that are not counted")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--out", type=Path, required=True, help="a folder for rank-<number>.json")
    return parser.parse_args()


def set_threads() -> None:
    """As many threads as OMP_NUM_THREADS says: TensorFlow's own count is of the machine's cores."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def wait_for_all(folder: Path, what: str, rank: int, size: int, loop: PlainLoop) -> None:
    """Says that this rank has come so far, and trains on until all have."""
    (folder / f"{what}-{rank}").touch()
    end = time.monotonic() + WAIT_SECS
    while len(list(folder.glob(f"{what}-*"))) < size:
        loop.run(0, MORE_STEPS)
        if time.monotonic() > end:
            raise RuntimeError(f"rank {rank}: the other ranks are not {what} after {WAIT_SECS:.0f} s")


def start_horovod() -> Any:
    import horovod.tensorflow as hvd

    hvd.init()
    return hvd


def main() -> None:
    args = arguments()
    hvd = None if args.alone else start_horovod()
    if hvd is None:
        rank, size = (int(os.environ.get(f"OMPI_COMM_WORLD_{what}", n)) for what, n in (("RANK", "0"), ("SIZE", "1")))
    else:
        rank, size = hvd.rank(), hvd.size()
    set_threads()
    tf.keras.utils.set_random_seed(1)
    dataset = dataset_of(*load_batches(args.folder, args.model, rank, size, BATCH))
    loop = PlainLoop(build_model({"model": args.model}), dataset, hvd)
    if args.alone and size > 1:
        loop.run(0, MORE_STEPS)
        wait_for_all(args.out, "ready", rank, size, loop)
    took = loop.run(args.warm_up, args.steps)
    losses = loop.losses
    if args.alone and size > 1:
        wait_for_all(args.out, "measured", rank, size, loop)
    examples = BATCH if args.alone else BATCH * size
    if args.alone or rank == 0:
        write_told(args.out / f"rank-{rank}.json", [Told.of(args.steps, [took], losses, examples)])
    if hvd is not None:
        hvd.shutdown()


if __name__ == "__main__":
    main()
