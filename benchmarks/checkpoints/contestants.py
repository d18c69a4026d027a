"""hpc_train's saves, called as a job calls them, and others: copies, bare writes, Keras's and TensorFlow's files."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from support.timing import Competitor

from hpc_train.checkpoint.async_saver import BackgroundSaver
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import OneRank
from hpc_train.distributed.world import World
from hpc_train.engine.step_report import Flags
from hpc_train.engine.train_step import make_train_step
from hpc_train.model.model_state import ModelState
from hpc_train.model.own_steps import updates_of

if TYPE_CHECKING:
    import keras


FEATURES, CLASSES = 64, 10


@dataclass(frozen=True)
class Size:
    """How large a state is, and how often it is measured.

    Attributes:
        width: Units of each hidden layer; `layers` counts the output layer, too.
        batch: Rows of a training step.
        rounds: A B B A rounds, two repeats each.
    """

    name: str
    layers: int
    width: int
    batch: int
    rounds: int


@dataclass(frozen=True)
class Subject:
    """A model that trains, and its state as hpc_train sees it.

    Attributes:
        variables: Of the model and of its optimizer, as TensorFlow's.
        nbytes: Of all of them.
        train: Makes one training step, as a job's loop does.
    """

    size: Size
    model: keras.Model
    state: ModelState
    variables: list[Any]
    nbytes: int
    train: Callable[[], None]


def make_subject(size: Size) -> Subject:
    """Builds the model and makes a training step, so that no variable is as it was at first."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(size.width, activation="relu") for _ in range(size.layers - 1)]
    model = keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)])
    model.compile(keras.optimizers.Adam(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    state = ModelState(model, World(None, local_rank=0, local_size=1), updates_of(model, None, "model"))
    state.reserve()
    step = make_train_step(model, GradientAllreduce(OneRank()), state.carried, undo=False)
    random = np.random.default_rng(1)
    rows = tf.constant(random.normal(size=(size.batch, FEATURES)).astype(np.float32))
    batch = (rows, tf.constant(random.integers(CLASSES, size=size.batch)))

    def train() -> None:
        if not step(batch, Flags())().applied:
            raise RuntimeError("a training step failed: nothing here is worth measuring")

    train()
    variables = [*model.variables, *model.optimizer.variables]
    return Subject(
        size,
        model,
        state,
        [v.value for v in variables],
        sum(_nbytes(v) for v in variables),
        train,
    )


def _nbytes(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64)) * np.dtype(variable.dtype).itemsize


ORDER = DataOrder(seed=1, shuffle="block", rows=60_000, shards="0" * 64)
RANDOM = {"python": np.zeros((1, 626), np.uint32), "numpy": np.zeros((1, 626), np.uint32)}
"""As many bytes as the random states of one rank."""
BATCH = 64
PIECE_BYTES, DIGEST_BYTES, OVERHEAD_BYTES = 8 << 20, 1 << 20, 1 << 18
OURS = "hpc_train"
MEMCPY, BY_VARIABLE = "memcpy", "memcpy by variable"
KERAS_WEIGHTS, KERAS_MODEL = "Keras save_weights", "Keras save"
TF_SYNC, TF_ASYNC = "tf.train.Checkpoint", "tf.train.Checkpoint async"
TF_FSYNC, NO_SAVE = "TF write and fsync", "no save"
RAW_WRITE, SHA256 = "write and fsync", "sha256"
TF_RESTORE, KERAS_LOAD = "tf.train.Checkpoint.read", "Keras load_weights"


class Saves:
    """Saves of `subject` under `folder`, of which the newest stays.

    Attributes:
        manager: Its checkpoints. idle: Set while nothing is being written.
    """

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.manager = CheckpointManager(folder, Retention(1))
        self.idle = threading.Event()
        self.idle.set()
        self._subject, self._steps = subject, count(1)
        self._saver: BackgroundSaver | None = None

    @contextmanager
    def in_background(self) -> Iterator[Saves]:
        """Saves that a thread writes, as a job has them."""
        with BackgroundSaver(self.manager, lambda *_: self.idle.set(), lambda _: self.idle.set()) as self._saver:
            yield self

    def snapshot(self) -> Snapshot:
        """The state in the arena."""
        step = next(self._steps)
        progress = DataProgress(step, BATCH * step, ((0, 1),))
        return self._subject.state.snapshot(Snapshot({}, {}, progress, ORDER, 1, 0.0, RANDOM, 1))

    def begin(self) -> None:
        """What the training thread does for a save: the snapshot, and handing it to the thread that writes."""
        assert self._saver is not None
        self.idle.clear()
        self._saver.begin(self.snapshot())

    def wait(self) -> None:
        """Waits until it is committed."""
        assert self._saver is not None
        self._saver.wait()

    def stall(self) -> Competitor:
        """`begin`, while nothing is in flight."""
        return Competitor(OURS, self.begin, finish=self.wait)

    def restore(self) -> tuple[float, float, float]:
        """Restores the newest checkpoint; seconds for the check of its digests, for reading, for assigning."""
        start = time.perf_counter()
        step = self.manager.find_whole().step
        if step is None:
            raise RuntimeError("the checkpoint is not whole: nothing here is worth measuring")
        checked = time.perf_counter()
        snapshot = self.manager.load(step)
        loaded = time.perf_counter()
        self._subject.state.share(snapshot, part=0)
        return checked - start, loaded - checked, time.perf_counter() - loaded


class Memory:
    """Two touched buffers, each as large as the state."""

    def __init__(self, subject: Subject) -> None:
        self.source, self.target = np.ones(subject.nbytes, np.uint8), np.zeros(subject.nbytes, np.uint8)
        ends = np.cumsum([v.numpy().nbytes for v in subject.variables])
        cuts = list(zip([0, *ends[:-1]], ends, strict=True))
        self._parts = [(self.target[start:end], self.source[start:end]) for start, end in cuts]

    def copy(self) -> Competitor:
        """All of it at once, by one core."""
        return Competitor(MEMCPY, lambda: np.copyto(self.target, self.source))

    def copy_by_variable(self) -> Competitor:
        """One call of np.copyto for each variable's bytes."""

        def run() -> None:
            for target, source in self._parts:
                np.copyto(target, source)

        return Competitor(BY_VARIABLE, run)

    def write(self, folder: Path) -> Competitor:
        """To a new file, then fsync: what the disk gives."""
        path = folder / "raw"

        def run() -> None:
            with open(path, "xb", buffering=0) as file:
                for start in range(0, len(self.source), PIECE_BYTES):
                    piece = memoryview(self.source[start : start + PIECE_BYTES])
                    while piece:
                        piece = piece[file.write(piece) :]
                os.fsync(file.fileno())

        return Competitor(RAW_WRITE, run, finish=path.unlink)

    def digest(self) -> Competitor:
        """SHA-256 of all of it, by one core."""

        def run() -> None:
            digest = hashlib.sha256()
            for start in range(0, len(self.source), DIGEST_BYTES):
                digest.update(self.source[start : start + DIGEST_BYTES].data)

        return Competitor(SHA256, run)


class Files:
    """What Keras and TensorFlow write, and read back.

    What each has written is looked at: it must be as large as the state.
    """

    def __init__(self, subject: Subject, folder: Path) -> None:
        import tensorflow as tf

        self._subject, self._folder = subject, folder
        # The variables themselves, since what Checkpoint finds in a Keras 3 model depends on Keras's version.
        self._checkpoint, self._async = (tf.train.Checkpoint(variables=subject.variables) for _ in range(2))
        self._async_options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)

    def save_weights(self) -> Competitor:
        """All variables: of a compiled model, the optimizer's too; without fsync."""
        path = self._folder / "k.weights.h5"
        return self._writing(KERAS_WEIGHTS, lambda: self._subject.model.save_weights(path))

    def save_model(self) -> Competitor:
        """The same, and how the model is built; without fsync."""
        path = self._folder / "k.keras"
        return self._writing(KERAS_MODEL, lambda: self._subject.model.save(path))

    def checkpoint(self, synced: bool = False) -> Competitor:
        """All variables; `synced`: and then fsync of what was written, which it leaves out."""

        def write() -> None:
            self._checkpoint.write(str(self._folder / "tf"))
            for path in self._folder.glob("tf.*") if synced else ():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())

        return self._writing(TF_FSYNC if synced else TF_SYNC, write)

    def checkpoint_async(self) -> Competitor:
        """The call alone; what it leaves to its thread is waited for after it."""
        prefix = str(self._folder / "tf-async")
        return self._writing(TF_ASYNC, lambda: self._async.write(prefix, self._async_options), self._async.sync)

    def _writing(self, name: str, write: Callable[[], object], wait: Callable[[], object] = lambda: None) -> Competitor:
        nbytes = self._subject.nbytes

        def run() -> None:
            write()

        def finish() -> None:
            wait()
            paths = [path for path in self._folder.iterdir() if path.name.startswith(("k.", "tf"))]
            written = sum(path.stat().st_size for path in paths)
            if not nbytes <= written <= 1.1 * nbytes + OVERHEAD_BYTES:
                raise RuntimeError(f"{name} wrote {written:,} bytes of {nbytes:,}: not comparable")
            for path in paths:
                path.unlink()

        return Competitor(name, run, finish=finish)

    def read(self) -> Competitor:
        """Restores all variables from a file that is written here."""
        prefix = str(self._folder / "restored")
        self._checkpoint.write(prefix)

        def run() -> None:
            self._checkpoint.read(prefix)

        return Competitor(TF_RESTORE, run)

    def load_weights(self) -> Competitor:
        """Restores all variables from a file that is written here."""
        path = self._folder / "restored.weights.h5"
        self._subject.model.save_weights(path)
        return Competitor(KERAS_LOAD, lambda: self._subject.model.load_weights(path))
