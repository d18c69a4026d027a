"""TensorBoard's event files in a job-dir."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_train.files import create
from hpc_train.folders import make_folder, remove
from hpc_train.lazy import tf
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.tensorboard_events import event_at

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

SECS_BEFORE_RETRY = 60.0
SECS_BETWEEN_FLUSHES = 5.0


class EventFiles:
    """Event files in folders of a job-dir, opened when first written to; for one thread. Its owner closes it.

    A file that cannot be written is given up, and another begun a minute later, so that nothing follows the
    torn end of a record, where readers stop.

    Args:
        job_dir: Folder that the files' folders lie in.
        lenient: What passes over a full disk.
    """

    def __init__(self, job_dir: Path, lenient: Lenient) -> None:
        self._job_dir, self._lenient = job_dir, lenient
        self._open: dict[str, tf.io.TFRecordWriter] = {}
        self._not_before: dict[str, float] = {}
        self._unflushed: set[str] = set()
        self._begun: set[str] = set()
        self._flushed, self._begins_at = 0.0, 0

    def close(self) -> None:
        """Writes what is left, and closes the files."""
        for folder, writer in self._open.items():
            with self._writing(folder):
                writer.close()
        self._open.clear()

    def begin(self, step: int) -> None:
        """Lets what has been written of steps above `step` be superseded, by new files."""
        self.close()
        self._begun.clear()
        self._begins_at = step + 1

    def write(self, folder: str, step: int, values: Iterable[Summary.Value], flush: bool = True) -> None:
        """Adds `values`, measured at `step`. Without `flush` they reach the file within some seconds of writing."""
        event = event_at(step)
        event.summary.value.extend(values)
        if time.monotonic() < self._not_before.get(folder, 0.0):
            return
        with self._appending(folder):
            if folder not in self._open:
                self._open[folder] = self._new_file(folder)
                if folder not in self._begun:
                    self._begun.add(folder)
                    self._open[folder].write(_restart(self._begins_at).SerializeToString())
            self._open[folder].write(event.SerializeToString())
            if flush:
                self._open[folder].flush()
            else:
                self._unflushed.add(folder)

    def flush_some(self) -> None:
        """Flushes what `write` has left, once in some seconds: many small files cost a busy file system dear."""
        if time.monotonic() - self._flushed < SECS_BETWEEN_FLUSHES:
            return
        for folder in self._unflushed & set(self._open):
            with self._appending(folder):
                self._open[folder].flush()
        self._unflushed.clear()
        self._flushed = time.monotonic()

    def replace(self, folder: str, name: str, event: Event | None) -> None:
        """Puts `event` into a file of its own, in the place of the one called `name` that an earlier run has written.

        Of what is once in a run (graph, text, hyper-parameters) TensorBoard shows the first that it meets. With
        None the old file goes.
        """
        with self._writing(folder):
            for old in (self._job_dir / folder).glob(f"events.out.tfevents.*.{name}"):
                remove(old, missing_ok=True)
            if event is not None:
                writer = self._new_file(folder, f".{name}")
                writer.write(event.SerializeToString())
                writer.close()

    def _new_file(self, folder: str, suffix: str = "") -> tf.io.TFRecordWriter:
        from tensorboard.compat.proto.event_pb2 import Event

        make_folder(self._job_dir / folder, top=self._job_dir)
        # Readers go through the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}{suffix}"
        with open(create(self._job_dir / folder / name), "wb") as file:  # TensorFlow would follow a link of this name
            writer = tf.io.TFRecordWriter(f"/proc/self/fd/{file.fileno()}")
        writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        return writer

    def _writing(self, folder: str) -> AbstractContextManager[None]:
        """Passes over what goes wrong in `folder`."""
        return self._lenient.writing(self._job_dir / folder, tf.errors.OpError)

    @contextmanager
    def _appending(self, folder: str) -> Iterator[None]:
        """The same, and gives the file up that is open there."""
        with self._writing(folder):
            try:
                yield
            except (OSError, tf.errors.OpError):
                self._not_before[folder] = time.monotonic() + SECS_BEFORE_RETRY
                writer = self._open.pop(folder, None)
                if writer is not None:
                    with suppress(OSError, tf.errors.OpError):
                        writer.close()
                raise


def _restart(step: int) -> Event:
    """Has readers forget what they have of `step` and later ones."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    event = event_at(step)
    event.session_log.status = SessionLog.START
    return event
