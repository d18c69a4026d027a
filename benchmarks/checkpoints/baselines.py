"""What ours is compared with: copies in memory, bare writes and digests, Keras's files, tf.train.Checkpoint."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.timing import Competitor

from checkpoints.models import Subject

PIECE_BYTES = 8 << 20
DIGEST_BYTES = 1 << 20
OVERHEAD_BYTES = 1 << 18
MEMCPY, BY_VARIABLE = "memcpy", "memcpy by variable"
KERAS_WEIGHTS, KERAS_MODEL = "Keras save_weights", "Keras save"
TF_SYNC, TF_ASYNC = "tf.train.Checkpoint", "tf.train.Checkpoint async"
TF_FSYNC, NO_SAVE = "TF write and fsync", "no save"
RAW_WRITE, SHA256 = "write and fsync", "sha256"
TF_RESTORE, KERAS_LOAD = "tf.train.Checkpoint.read", "Keras load_weights"


class Memory:
    """Two touched buffers, each as large as the state."""

    def __init__(self, subject: Subject) -> None:
        self.source, self.target = np.ones(subject.nbytes, np.uint8), np.zeros(subject.nbytes, np.uint8)
        ends = np.cumsum([v.numpy().nbytes for v in subject.variables])
        cuts = list(zip([0, *ends[:-1]], ends, strict=True))
        self._parts = [(self.target[start:end], self.source[start:end]) for start, end in cuts]

    def copy(self) -> Competitor:
        """All of it at once, by one core."""

        def run() -> int:
            np.copyto(self.target, self.source)
            return 1

        return Competitor(MEMCPY, run)

    def copy_by_variable(self) -> Competitor:
        """One call of np.copyto for each variable's bytes."""

        def run() -> int:
            for target, source in self._parts:
                np.copyto(target, source)
            return 1

        return Competitor(BY_VARIABLE, run)

    def write(self, folder: Path) -> Competitor:
        """To a new file, then fsync: what the disk gives."""
        path = folder / "raw"

        def run() -> int:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                for start in range(0, len(self.source), PIECE_BYTES):
                    piece = memoryview(self.source[start : start + PIECE_BYTES])
                    while piece:
                        piece = piece[os.write(descriptor, piece) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return 1

        return Competitor(RAW_WRITE, run, finish=path.unlink)

    def digest(self) -> Competitor:
        """SHA-256 of all of it, by one core."""

        def run() -> int:
            digest = hashlib.sha256()
            for start in range(0, len(self.source), DIGEST_BYTES):
                digest.update(self.source[start : start + DIGEST_BYTES].data)
            return 1

        return Competitor(SHA256, run)


class Files:
    """What Keras and TensorFlow write, and read back.

    What each has written is looked at: it must be as large as the state.
    """

    def __init__(self, subject: Subject, folder: Path) -> None:
        import tensorflow as tf

        self._subject, self._folder = subject, folder
        # The variables themselves, since what Checkpoint finds in a Keras 3 model depends on Keras's version.
        self._checkpoint = tf.train.Checkpoint(variables=subject.variables)
        self._async = tf.train.Checkpoint(variables=subject.variables)
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
        prefix = str(self._folder / "tf")

        def write() -> None:
            self._checkpoint.write(prefix)
            if synced:
                for path in self._folder.glob("tf.*"):
                    _fsync(path)

        return self._writing(TF_FSYNC if synced else TF_SYNC, write)

    def checkpoint_async(self) -> Competitor:
        """The call alone; what it leaves to its thread is waited for after it."""
        prefix = str(self._folder / "tf-async")

        def write() -> None:
            self._async.write(prefix, self._async_options)

        return self._writing(TF_ASYNC, write, self._async.sync)

    def _writing(self, name: str, write: Callable[[], object], wait: Callable[[], object] = lambda: None) -> Competitor:
        nbytes = self._subject.nbytes

        def run() -> int:
            write()
            return 1

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

        def run() -> int:
            self._checkpoint.read(prefix)
            return 1

        return Competitor(TF_RESTORE, run)

    def load_weights(self) -> Competitor:
        """Restores all variables from a file that is written here."""
        path = self._folder / "restored.weights.h5"
        self._subject.model.save_weights(path)

        def run() -> int:
            self._subject.model.load_weights(path)
            return 1

        return Competitor(KERAS_LOAD, run)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
