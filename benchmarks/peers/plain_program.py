"""One rank, or one worker, of a rival's loop in a process of its own, see rivals.py.

    mpirun -np 2 python -m peers.plain_program --model "MLP 1.9 M" --folder DIR --warm-up 100 --steps 1000 --out DIR

Horovod's and MPI's settings are those of the environment. --alone: no allreduce, and no MPI; several ranks then run at
once, each by itself, and go on until the last one has measured. --distribute: tf.distribute, without mpirun; TF_CONFIG
says which worker this is. On a node with GPUs each takes one, by its number there.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path

import tensorflow as tf

from peers.measurement import Measurement, rival_parser, write_measurements
from peers.models import build_model, load_batches
from peers.rivals import Loop, dataset_of, distributed_loop, plain_loop, take_gpu
from peers.settings import BATCH

WAIT_SECS = 60.0
MORE_STEPS = 4


def set_threads() -> None:
    """As many threads as OMP_NUM_THREADS says: TensorFlow's own count is of the machine's cores."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def wait_for_all(folder: Path, what: str, rank: int, size: int, loop: Loop) -> None:
    """Says that this rank has come so far, and trains on until all have."""
    (folder / f"{what}-{rank}").touch()
    end = time.monotonic() + WAIT_SECS
    while len(list(folder.glob(f"{what}-*"))) < size:
        loop.run(0, MORE_STEPS)
        if time.monotonic() > end:
            raise RuntimeError(f"rank {rank}: the other ranks are not {what} after {WAIT_SECS:.0f} s")


def make_loop(args: argparse.Namespace) -> tuple[Loop, int, int]:
    """The loop, this rank, and the number of ranks."""
    if args.distribute:
        set_threads()
        load = partial(load_batches, args.folder, args.model, batch=BATCH)
        return distributed_loop(lambda: build_model({"model": args.model}), load)
    if args.alone:
        hvd = None
        names = (("RANK", "0"), ("SIZE", "1"), ("LOCAL_RANK", "0"))
        rank, size, local = (int(os.environ.get(f"OMPI_COMM_WORLD_{what}", n)) for what, n in names)
    else:
        import horovod.tensorflow as hvd

        hvd.init()
        rank, size, local = hvd.rank(), hvd.size(), hvd.local_rank()
    take_gpu(local)
    set_threads()
    tf.keras.utils.set_random_seed(1)
    dataset = dataset_of(*load_batches(args.folder, args.model, rank, size, BATCH))
    return plain_loop(build_model({"model": args.model}), dataset, hvd), rank, size


def main() -> None:
    parser = rival_parser(__doc__)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--distribute", action="store_true")
    args = parser.parse_args()
    loop, rank, size = make_loop(args)
    beside_others = args.alone and size > 1
    if beside_others:
        loop.run(0, MORE_STEPS)
        wait_for_all(args.out, "ready", rank, size, loop)
    took = loop.run(args.warm_up, args.steps)
    losses = loop.losses
    if beside_others:
        wait_for_all(args.out, "measured", rank, size, loop)
    examples = BATCH if args.alone else BATCH * size
    if args.alone or rank == 0:
        write_measurements(args.out / f"rank-{rank}.json", [Measurement.of(args.steps, [took], losses, examples)])
    if not (args.alone or args.distribute):
        import horovod.tensorflow as hvd

        hvd.shutdown()


if __name__ == "__main__":
    main()
