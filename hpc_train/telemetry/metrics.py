"""metrics.jsonl, and the same in TensorBoard's event files."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from hpc_train.files import open_to_append, open_to_read
from hpc_train.telemetry import tensorboard_events
from hpc_train.telemetry.files import METRICS_FILE
from hpc_train.telemetry.json_files import Lenient, finite
from hpc_train.telemetry.progress import GAP
from hpc_train.telemetry.progress import SHARES as MEASURED
from hpc_train.telemetry.status import read_status
from hpc_train.telemetry.tensorboard_files import EventFiles

RANKS_SHOWN = 64
"""Ranks that have event files of their own. Where there are more, a record sums up what is known of all of them."""
SHARES = (*MEASURED, "other", GAP)
"""What `by_rank` divides a rank's time into, and its gap beside them."""


class MetricsWriter:
    """Appends to `<job_dir>/metrics.jsonl` and to event files in `<job_dir>/<kind>/`. A context manager.

    One line of metrics.jsonl is one JSON object: `kind` ("train", "eval", "eval_<name>", "start" and others), `step`,
    `time` (seconds since 1970) and what was measured. A "start" line begins each run: records with a larger step that
    are above it were made after the checkpoint from which it went on.

    Nothing here raises where a disk is full. Methods are for one thread, but `note` for any.
    """

    def __init__(self, job_dir: Path, lenient: Lenient) -> None:
        self._job_dir, self._lenient, self._lock = job_dir, lenient, threading.Lock()
        self._file = open_to_append(job_dir / METRICS_FILE)  # closed in __exit__
        if _is_torn(job_dir / METRICS_FILE):
            self._file.write(b"\n")
        self._events = EventFiles(job_dir, lenient)
        self._sessions: Sequence[str] = ()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._events.close()

    def start(self, step: int, **about: Any) -> None:
        """Notes that a run begins at `step`. TensorBoard forgets what earlier runs recorded of later steps."""
        self.note("start", step, **about)
        self._events.begin(step)

    def end(self, step: int, state: str, reason: str | None = None) -> None:
        """Notes that the run has ended at `step`: an "end" line, and the job's state in the HPARAMS tab.

        Args:
            state: "succeeded", "failed", or "stopped": to go on, which TensorBoard shows as a job that runs.
            reason: Why, for people.
        """
        self.note("end", step, state=state, reason=reason)
        if state != "stopped":
            for kind in self._sessions:
                self._events.replace(kind, "hparams_end", tensorboard_events.ended_event(state == "succeeded"))

    def record(
        self,
        kind: str,
        step: int,
        values: Mapping[str, float | None],
        histograms: Mapping[str, Mapping[int, int]] | None = None,
        by_rank: Mapping[str, Sequence[float | None]] | None = None,
        only_here: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes what was measured at `step` to both places.

        Args:
            values: Numbers by name; None where unknown.
            histograms: Counts by value, of integers.
            by_rank: For each name one number a rank, None where unknown, of which four digits are kept. Of more than 64
                ranks, metrics.jsonl has `over_ranks` instead, see `summed_up`. They go to event files in
                `ranks/rank_<k>/`, of the first 64 ranks only, where the shares of a rank's time ("input", "compute",
                "communication", "apply", "checkpoint", "other", and "gap") have tags like "share/input".
            only_here: What else goes into metrics.jsonl alone.
        """
        histograms, by_rank = histograms or {}, by_rank or {}
        counts = {name: {str(value): n for value, n in sorted(h.items())} for name, h in histograms.items()}
        self.note(kind, step, **{**values, **counts, **_of_ranks(by_rank), **(only_here or {})})
        shown = tensorboard_events.scalars(values)
        for name, h in histograms.items():
            numbers, times = np.array(sorted(h.items()), np.int64).reshape(-1, 2).T
            shown.append(tensorboard_events.histogram(name, tensorboard_events.buckets_of(numbers, times)))
        self._events.write(kind, step, shown)
        tags = {f"share/{name}" if name in SHARES else name: numbers for name, numbers in by_rank.items()}
        for rank in range(min(RANKS_SHOWN, max(map(len, by_rank.values()), default=0))):
            known = tensorboard_events.scalars(
                {tag: numbers[rank] for tag, numbers in tags.items() if rank < len(numbers)}
            )
            if known:
                self._events.write(f"ranks/rank_{rank}", step, known, flush=False)
        self._events.flush_some()

    def note(self, kind: str, step: int, /, **fields: Any) -> None:
        """Adds a line to metrics.jsonl alone. Any thread may call this."""
        record = {"kind": kind, "step": step, "time": time.time(), **fields}
        line = (json.dumps(finite(record)) + "\n").encode()
        with self._lock, self._lenient.writing(self._job_dir / METRICS_FILE):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(line) != len(line):
                os.ftruncate(self._file.fileno(), before)  # no half of a line, where the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def weights(self, step: int, variables: Mapping[str, np.ndarray]) -> None:
        """Writes histograms of `variables` to train/, by path. NaN and infinity are left out of them.

        A variable with more than 262,144 elements is sampled. Takes some 10 ms a variable of that size.
        """
        found = {path: tensorboard_events.buckets_of_variable(array) for path, array in variables.items()}
        values = [tensorboard_events.histogram(path, buckets) for path, buckets in found.items() if buckets is not None]
        self._events.write("train", step, values)

    def hyperparameters(self, params: Mapping[str, Any], kinds: Sequence[str] = ("eval",)) -> None:
        """Shows `params` in the HPARAMS tab, beside the last metrics of each evaluation set. Call this once in a run.

        Each of `kinds`, as given to `record`, has a row, called `<kind>` or, below a folder of jobs, `<job>/<kind>`;
        its columns are all parameters and all scalars of any job that TensorBoard reads. What the last run of the job
        wrote is replaced.

        Args:
            params: May be nested, which dots in the name show; what is no number, truth value or text is shown as text.
        """
        self._sessions = tuple(kinds)
        event = tensorboard_events.hyperparameters_event(tensorboard_events.flattened(params), str(self._job_dir))
        for kind in kinds:
            self._events.replace(kind, "hparams", event)
            self._events.replace(kind, "hparams_end", None)

    def graph(self, function: Any) -> bool:
        """Shows the graph of a concrete tf.function in the GRAPHS tab of train/; whether it has at most 50 MB."""
        event = tensorboard_events.graph_event(function)
        self._events.replace("train", "graph", event)
        return event is not None

    def text(self, tag: str, markdown: str) -> None:
        """Shows `markdown` as `tag`, a word, in the TEXT tab of train/, in the place of an earlier run's."""
        self._events.replace("train", f"text_{tag}", tensorboard_events.text_event(tag, markdown))


def _of_ranks(by_rank: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """The field of a record that has what is known of ranks: one by one, or of many summed up."""
    if max(map(len, by_rank.values()), default=0) > RANKS_SHOWN:
        return {"over_ranks": {name: summed_up(numbers) for name, numbers in by_rank.items()}}
    rounded = {name: [_rounded(n) for n in numbers] for name, numbers in by_rank.items()}
    return {"by_rank": rounded} if rounded else {}


def summed_up(numbers: Sequence[float | None]) -> dict[str, float | None]:
    """Of numbers by rank: how many `ranks` are known, `lowest`, `median`, `mean`, `highest`, and which rank has which.

    `lowest_rank` and `highest_rank` are the first that have it. Empty where no rank is known. Pure.
    """
    known = [(number, rank) for rank, number in enumerate(numbers) if number is not None]
    if not known:
        return {}
    values = [number for number, _ in known]
    lowest, highest = min(known), max(known, key=lambda one: (one[0], -one[1]))
    about = {"lowest": lowest[0], "median": median(values), "mean": fmean(values), "highest": highest[0]}
    rounded = {name: _rounded(value) for name, value in about.items()}
    return {"ranks": len(known), **rounded, "lowest_rank": lowest[1], "highest_rank": highest[1]}


def _rounded(number: float | None) -> float | None:
    """Four digits, since each record has many."""
    return None if number is None else float(f"{number:.4g}")


def _is_torn(path: Path) -> bool:
    """Whether the last line of a file lacks its end, as a machine that went down may leave it."""
    with open_to_read(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return size > 0 and file.read(1) != b"\n"


def note_failed(job_dir: Path, reason: str) -> None:
    """Adds an "end" line to metrics.jsonl, at the step that the status has; for the rank that failed."""
    step = read_status(job_dir).get("step")
    record = {"kind": "end", "step": step or 0, "time": time.time(), "state": "failed", "reason": reason}
    with suppress(OSError), open_to_append(job_dir / METRICS_FILE) as file:
        file.write((json.dumps(record) + "\n").encode())
