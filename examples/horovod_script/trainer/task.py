"""Trains a small network with Keras 3 and Horovod, by a loop of its own. One rank or many.

    mpirun -np 2 python -m trainer.task --job-dir DIR [--steps 300] [--data ../fashion_mnist/data]

Every --save-steps steps, and when it is asked to stop, rank 0 writes DIR/checkpoints/step-<n>.weights.h5, with the
optimizer's variables in it; a job that is started again goes on from the newest. The model is DIR/model/model.keras,
and what it is worth is in DIR/model/metrics.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import h5py
import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXIT_CODES = {signal.SIGUSR1: 3, signal.SIGTERM: 4}
"""What a job that was asked to stop ends with, so that it is known to have saved and to go on when started again."""
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
"""One of these is set in what an MPI launcher starts."""
KEPT_CHECKPOINTS = 2
SEED = 1

asked: list[int] = []
"""The exit codes of the signals that have come; the first one counts."""


def parse() -> argparse.Namespace:
    """The command line; ends with code 2 where it cannot be used."""
    parser = argparse.ArgumentParser(prog="trainer.task", description=__doc__.splitlines()[0])
    parser.add_argument("--job-dir", type=Path, required=True, help="folder for all that the program writes")
    parser.add_argument("--data", type=Path, help="folder of examples/fashion_mnist/prepare.py [default: the digits]")
    parser.add_argument("--steps", type=int, default=300, help="over all runs [default: 300]")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a rank and step [default: 32]")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="[default: 0.002]")
    parser.add_argument("--save-steps", type=int, default=50, help="steps between checkpoints [default: 50]")
    parser.add_argument("--rows", type=int, help="use so many rows only")
    arguments = parser.parse_args()
    for name in ("steps", "batch_size", "learning_rate", "save_steps"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')}: {getattr(arguments, name)} is not allowed; allowed: above 0")
    return arguments


# ---- ranks


@dataclass(frozen=True)
class World:
    """This rank and what it does together with the others, by Horovod; a program that is started alone needs none."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def average(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Each tensor's mean over all ranks; in a tf.function. Collective."""
        return tensors if self.size == 1 else hvd.grouped_allreduce(tensors)

    def broadcast(self, variables: list[Any]) -> None:
        """Gives all ranks what rank 0 has in these variables of Keras. Collective."""
        if self.size > 1:
            hvd.broadcast_variables([variable.value for variable in variables], root_rank=0)

    def total(self, values: list[int]) -> list[int]:
        """The sums over all ranks. Collective."""
        return values if self.size == 1 else hvd.allreduce(tf.constant(values), op=hvd.Sum).numpy().tolist()

    def largest(self, value: int) -> int:
        """The largest of all ranks; a rank that has it knows that all have come so far. Collective."""
        return value if self.size == 1 else int(hvd.allreduce(tf.constant(value), op=hvd.Max))


def join() -> World:
    """Joins the ranks that the launcher has started, if one has. Collective."""
    if not any(name in os.environ for name in LAUNCHERS):
        return World()
    hvd.init()
    return World(hvd.rank(), hvd.size(), hvd.local_rank())


def set_up_devices(world: World) -> None:
    """Gives this rank one GPU of its node, if there are any, and as many threads as its share of the cores."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        mine = gpus[world.local_rank % len(gpus)]
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)
    if threads := os.environ.get("OMP_NUM_THREADS"):  # which TensorFlow does not read
        tf.config.threading.set_intra_op_parallelism_threads(int(threads))


# ---- data and model


def load(folder: Path | None, part: str, rows: int | None, world: World) -> tuple[np.ndarray, np.ndarray]:
    """This rank's images float32 [N, H, W, 1] in 0 to 1 and labels int64 [N] of "train" or "test".

    Raises:
        OSError: There are no such files.
    """
    if folder is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(SEED).permutation(len(digits.target))
        chosen = order[297:] if part == "train" else order[:297]
        images, labels = digits.images[chosen] / 16, digits.target[chosen]
    else:
        paths = sorted(folder.glob(f"{part}-*.h5"))
        if not paths:
            raise FileNotFoundError(f"{folder} has no {part}-*.h5; run examples/fashion_mnist/prepare.py")
        shards = []
        for path in paths:
            with h5py.File(path) as file:
                shards.append((file["image"][()], file["label"][()]))
        images, labels = (np.concatenate(arrays) for arrays in zip(*shards, strict=True))
        images = images / np.float32(255)
    mine = slice(world.rank, rows, world.size)
    return images[mine, :, :, np.newaxis].astype(np.float32), labels[mine].astype(np.int64)


def build_model(shape: tuple[int, ...], learning_rate: float) -> keras.Model:
    """Images float32 [B, H, W, 1] to logits [B, 10], compiled, so that its optimizer is saved with it."""
    model = keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile(keras.optimizers.Adam(learning_rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    return model


def step_function(model: keras.Model, world: World) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """One step on all ranks: (images, labels, stop) to the mean loss, and whether any rank was asked to stop.

    hvd.DistributedOptimizer and DistributedGradientTape do not work with Keras 3; this does.
    """
    image = tf.TensorSpec([None, *model.input_shape[1:]], tf.float32)

    @tf.function(input_signature=[image, tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32)])
    def step(images: tf.Tensor, labels: tf.Tensor, stop: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = model.loss(labels, model(images, training=True))
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        # Loss and flag travel with the gradients: agreeing on them costs no message of its own.
        *gradients, loss, stop = world.average([*gradients, loss, stop])
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss, stop > 0

    return step


@functools.lru_cache(maxsize=1)
def order_of(epoch: int, rank: int, rows: int) -> np.ndarray:
    """The order in which `rank` takes its rows in an epoch, which depends on nothing else. Pure."""
    return np.random.default_rng([SEED, epoch, rank]).permutation(rows)


# ---- files, of rank 0


def replace(path: Path, write: Callable[[str], Any]) -> None:
    """Replaces `path` by what `write` writes, in one rename: nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}")  # Keras wants its own ending
    write(str(temporary))
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save(model: keras.Model, folder: Path) -> None:
    """Writes a checkpoint and removes old ones."""
    replace(folder / f"step-{int(model.optimizer.iterations):08d}.weights.h5", model.save_weights)
    for old in sorted(folder.glob("step-*.weights.h5"))[:-KEPT_CHECKPOINTS]:
        old.unlink()


# ---- training


def train(arguments: argparse.Namespace, world: World) -> int:
    """Trains and tests on all ranks, or until a rank is asked to stop; returns the exit code. Collective."""
    problem = None
    try:
        images, labels = load(arguments.data, "train", arguments.rows, world)
        test_images, test_labels = load(arguments.data, "test", arguments.rows, world)
        if len(images) < arguments.batch_size:
            problem = f"{len(images)} rows for a rank are fewer than --batch-size {arguments.batch_size}"
    except (OSError, KeyError) as error:
        problem = str(error)
    if worst := world.largest(2 if problem else 0):
        if problem:
            print(f"trainer.task: error: rank {world.rank}: --data: {problem}", file=sys.stderr, flush=True)
        return worst
    fewest = -world.largest(-len(images))  # a rank may have a row more than another, but all make as many steps
    per_epoch = fewest // arguments.batch_size

    keras.utils.set_random_seed(SEED)
    model = build_model(images.shape[1:], arguments.learning_rate)
    checkpoints = arguments.job_dir / "checkpoints"
    if world.rank == 0 and (newest := max(checkpoints.glob("step-*.weights.h5"), default=None)):
        model.load_weights(newest)
        print(f"goes on from step {int(model.optimizer.iterations)}, on {world.size} ranks", flush=True)
    world.broadcast([*model.variables, *model.optimizer.variables])

    train_step, begin = step_function(model, world), int(model.optimizer.iterations)
    for done in range(begin + 1, arguments.steps + 1):
        epoch, place = divmod(done - 1, per_epoch)
        rows = order_of(epoch, world.rank, len(images))[place * arguments.batch_size :][: arguments.batch_size]
        loss, stop = train_step(images[rows], labels[rows], tf.constant(float(bool(asked))))
        stop = bool(stop) and done < arguments.steps
        if world.rank == 0 and (stop or done % arguments.save_steps == 0 or done == arguments.steps):
            save(model, checkpoints)
            print(f"step {done}/{arguments.steps}: loss {float(loss):.4f}, saved", flush=True)
        if stop:
            if world.rank == 0:
                print("asked to stop; started again with the same --job-dir, it goes on from here", flush=True)
            return asked[0] if asked else 0  # the largest of all ranks counts

    logits = model.predict(test_images, batch_size=256, verbose=0)
    correct = int((logits.argmax(axis=1) == test_labels).sum())
    correct, of = world.total([correct, len(test_labels)])
    if world.rank == 0:
        metrics = {"accuracy": correct / of, "rows": of, "step": int(model.optimizer.iterations), "ranks": world.size}
        folder = arguments.job_dir / "model"
        replace(folder / "model.keras", model.save)
        replace(folder / "metrics.json", lambda path: Path(path).write_text(json.dumps(metrics, indent=2) + "\n"))
        print(f"accuracy {correct / of:.4f} on {of} test images, after {metrics['step']} steps; {folder}", flush=True)
    return 0


def note_signal(number: int, frame: FrameType | None) -> None:
    """Remembers that the job is to stop; it does so, with all ranks, after the step that it is in."""
    asked.append(EXIT_CODES[signal.Signals(number)])


def main() -> int:
    """Entry point; returns the exit code."""
    arguments = parse()
    for number in EXIT_CODES:
        signal.signal(number, note_signal)
    world = join()
    set_up_devices(world)
    try:
        code = world.largest(train(arguments, world))  # nobody leaves before rank 0 has written all
    except Exception:
        # An orderly end would wait for the other ranks, and they for this one: mpirun ends them when it is gone.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    for number in EXIT_CODES:
        signal.signal(number, signal.SIG_IGN)  # one that comes again would kill Python while it shuts down
    return code


if __name__ == "__main__":
    sys.exit(main())
