"""metrics.jsonl and TensorBoard event files."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.monitoring.files import Lenient, finite

if TYPE_CHECKING:
    import tensorflow as tf

METRICS_FILE = "metrics.jsonl"
SAMPLE = 4096


class MetricsWriter:
    """Appends to `<job_dir>/metrics.jsonl` and to event files in `<job_dir>/<kind>/`. A context manager.

    One line of metrics.jsonl is one JSON object: `kind` ("train", "eval", "eval_<name>" or "start"), `step`, `time`
    (seconds since 1970) and what was measured. A "start" line begins each run: records with a larger step that
    stand above it were made after the checkpoint from which it went on.
    """

    def __init__(self, job_dir: Path, lenient: Lenient) -> None:
        self._job_dir, self._lenient = job_dir, lenient
        self._file = open(job_dir / METRICS_FILE, "ab", buffering=0)  # noqa: SIM115 (closed in __exit__)
        if _is_torn(job_dir / METRICS_FILE):
            self._file.write(b"\n")
        self._events: dict[str, tf.summary.SummaryWriter] = {}

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import tensorflow as tf

        self._file.close()
        for kind_, writer in self._events.items():
            with self._lenient.writing(self._job_dir / kind_, tf.errors.OpError):
                writer.close()

    def start(self, step: int, **about: Any) -> None:
        """Notes that a run begins at `step`."""
        self._line("start", step, about)

    def record(
        self,
        kind: str,
        step: int,
        values: Mapping[str, float],
        histograms: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        """Writes `values` measured at `step` to both places, and `histograms`, which count integers."""
        import tensorflow as tf

        histograms = histograms or {}
        counts = {name: {str(value): n for value, n in sorted(h.items())} for name, h in histograms.items()}
        self._line(kind, step, {**values, **counts})
        with self._lenient.writing(self._job_dir / kind, tf.errors.OpError):
            if kind not in self._events:
                self._events[kind] = tf.summary.create_file_writer(str(self._job_dir / kind))
            with self._events[kind].as_default():
                for name, value in values.items():
                    tf.summary.scalar(name, value, step=step)
                for name, histogram in histograms.items():
                    tf.summary.histogram(name, _sample(histogram), step=step)
            self._events[kind].flush()

    def _line(self, kind: str, step: int, values: dict[str, Any]) -> None:
        record = {"kind": kind, "step": step, "time": time.time(), **values}
        line = (json.dumps(finite(record)) + "\n").encode()
        with self._lenient.writing(self._job_dir / METRICS_FILE):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(line) != len(line):
                os.ftruncate(self._file.fileno(), before)  # no half of a line, where the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sample(histogram: Mapping[int, int]) -> np.ndarray:
    """Numbers distributed as in `histogram`, some thousands at most, which is what TensorBoard takes."""
    values, counts = np.array(sorted(histogram.items()), np.int64).reshape(-1, 2).T
    shares = np.ceil(counts * min(1.0, SAMPLE / max(1, counts.sum()))).astype(np.int64)
    return np.repeat(values, shares).astype(np.float64)


def _is_torn(path: Path) -> bool:
    """Whether the last line of a file lacks its end, as a machine that went down may leave it."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return size > 0 and file.read(1) != b"\n"
