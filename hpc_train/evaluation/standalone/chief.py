"""What the chief of a separate evaluator does alone: chooses checkpoints, loads them, and keeps the results."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manifest import DamagedError, FormatError
from hpc_train.errors import UserError
from hpc_train.evaluation.standalone.checkpoint_queue import Checkpoint, CheckpointQueue, Training
from hpc_train.evaluation.standalone.job_watcher import Ask, JobWatcher
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.records import is_evaluation
from hpc_train.model.model_state import ModelState
from hpc_train.outcome import EXIT_FAILED, EXIT_LOST
from hpc_train.resilience.job_lock import JobLock
from hpc_train.telemetry import tensorboard_events
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.metrics import MetricsWriter
from hpc_train.telemetry.tensorboard_files import EventFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationRequest:
    """What `hpc-train evaluate` was asked for.

    Args:
        out: Where results go; outside the job-dir.
        step: Of the checkpoint to evaluate; None: the newest.
        poll_secs: Between looks at the job-dir.
        idle_timeout_secs: Ends the evaluator when nothing new has come for so long.
        name: Of the evaluation set, or a name for it.
        settings: `KEY=VALUE` each, laid over the job file.
    """

    job_dir: Path
    out: Path
    follow: bool = False
    step: int | None = None
    every_checkpoint: bool = False
    poll_secs: float = 10.0
    idle_timeout_secs: float | None = None
    name: str | None = None
    settings: Sequence[str] = ()


@dataclass(frozen=True)
class EvaluatorCommand:
    """What all ranks do next: leave with `code`, evaluate a checkpoint as `kinds`, or wait."""

    code: int | None = None
    step: int | None = None
    time: float = 0.0
    averaged: bool = False
    kinds: Sequence[str] = ()

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint to evaluate."""
        assert self.step is not None
        return Checkpoint(self.step, self.time, self.averaged)


class EvaluatorChief:
    """The evaluator's view of the job-dir and of its own results. Nothing is written before `begin`.

    Args:
        stack: Closes what `begin` opens.
    """

    def __init__(self, request: EvaluationRequest, ask: Ask, stack: ExitStack) -> None:
        self._request, self._stack = request, stack
        self._job = JobWatcher(request.job_dir, self.report, ask)
        self._queue = CheckpointQueue(request.every_checkpoint)
        self._kinds: list[str] = []
        self._done: dict[str, list[Checkpoint]] = {}
        self._count, self._last_line, self._seen = 0, "", 0
        self._new_at, self._looked_at = time.monotonic(), float("-inf")

    def report(self, text: str) -> None:
        """Prints a line."""
        log.info(text)

    def begin(self, kinds: Sequence[str], averages: bool) -> None:
        """The model is there: opens the results, and looks at what they hold already.

        Raises:
            UserError: `out` cannot be written, or another evaluator writes there.
        """
        out, follow = self._request.out, self._request.follow
        self._kinds, self._job.averages = list(kinds), averages
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{out}: cannot be made: {error.strerror}; choose another folder by --out") from None
        try:
            lock = JobLock(out)
            lock.acquire()
        except UserError as error:
            raise UserError(f"--out: {error}") from None
        self._stack.callback(lock.release)
        self._done = {kind: found for kind, found in evaluated_in(JobDir(out)).items() if kind in kinds}
        if not follow:
            self._done = {}
        known = [set(_keys(self._done.get(kind, []))) for kind in kinds]
        whole = set.intersection(*known)
        self._queue = CheckpointQueue(self._request.every_checkpoint, whole)
        lenient = _Strict()
        self._metrics = self._stack.enter_context(MetricsWriter(out, lenient))
        self._events = EventFiles(out, lenient)
        self._stack.callback(self._events.close)
        self.report(f"evaluating {self._request.job_dir}; results in {out}")
        if whole:
            self.report(f"{len({(c.step, c.time) for c in whole})} checkpoints were evaluated earlier")

    def command(self) -> EvaluatorCommand:
        """What to do now.

        Raises:
            UserError: Nothing is followed, and there is no such checkpoint, or none that is whole.
        """
        training = self._look()
        chosen = self._queue.next()
        if chosen is not None:
            return self._to_evaluate(chosen)
        if not self._request.follow:
            if self._count == 0:
                self._complain()
            return EvaluatorCommand(0)
        if self._queue.is_over(training):
            return self._last_command(training)
        limit = self._request.idle_timeout_secs
        if limit is not None and time.monotonic() - self._new_at >= limit:
            self.report(f"nothing new for {limit:.0f} s (--idle-timeout-secs): training is {training}")
            return EvaluatorCommand(EXIT_FAILED)
        self._report_wait(training)
        return EvaluatorCommand()

    def _look(self) -> Training:
        self._looked_at = time.monotonic()
        training, there = self._job.look()
        self._see(there)
        return training

    def _see(self, there: list[Checkpoint]) -> None:
        wanted = self._request.step
        there = [c for c in there if wanted is None or c.step == wanted]
        if (seen := hash(tuple(there))) != self._seen:
            self._seen, self._new_at = seen, time.monotonic()
        for gone in self._queue.see(there):
            self.report(f"skipped the checkpoint of step {gone.step}: it was removed before its turn")

    def _to_evaluate(self, chosen: Checkpoint) -> EvaluatorCommand:
        def is_open(kind: str) -> bool:
            queue = CheckpointQueue(False, self._done.get(kind, []))
            queue.see([chosen])
            return queue.next() is not None

        kinds = [kind for kind in self._kinds if is_open(kind)]
        return EvaluatorCommand(None, chosen.step, chosen.time, chosen.averaged, kinds)

    def _complain(self) -> None:
        folder, wanted = self._job.job_dir.checkpoints_path, self._request.step
        steps = self._job.manager.steps()
        if not self._request.job_dir.is_dir():
            raise UserError(f"{self._request.job_dir}: no such job-dir; --follow waits for one")
        if wanted is not None and steps and wanted not in steps:
            raise UserError(f"--step: there is no checkpoint of step {wanted}; there are: {', '.join(map(str, steps))}")
        if wanted in steps:
            raise UserError(f"--step: the checkpoint of step {wanted} is damaged")
        if steps:
            raise UserError(f"{folder}: no checkpoint is whole")
        raise UserError(f"{folder}: there is no checkpoint yet; --follow waits for one")

    def _last_command(self, training: Training) -> EvaluatorCommand:
        counted = f"evaluated {self._count} checkpoint{'' if self._count == 1 else 's'}"
        if training == "lost":
            self.report(f"training was killed and left no word ({self._job.why}); {counted}")
            return EvaluatorCommand(EXIT_LOST)
        self.report(f"training has ended ({self._job.why}); {counted}")
        return EvaluatorCommand(0)

    def _report_wait(self, training: Training) -> None:
        state, step = self._job.status.get("state"), self._job.status.get("step")
        text = {
            "awaited": f"waiting for the job in {self._request.job_dir} to begin",
            "away": f"training is {state} at step {step}; waiting for it to go on",
        }.get(training, "waiting for the first checkpoint" if not self._count and not self._done else "")
        if text and text != self._last_line:
            self.report(text)
        self._last_line = text

    def watch(self) -> None:
        """To be called during an evaluation, so that checkpoints which come and go meanwhile are reported."""
        if self._request.every_checkpoint and time.monotonic() - self._looked_at >= self._request.poll_secs:
            self._looked_at = time.monotonic()
            with suppress(UserError):  # the next look reports it
                self._see(self._job.checkpoints())

    def load(self, command: EvaluatorCommand, state: ModelState) -> Snapshot | None:
        """The checkpoint that `command` names; None (logged where it matters) where it is gone or damaged.

        Raises:
            UserError: It is of another model, or cannot be read.
        """
        checkpoint, manager = command.checkpoint, self._job.manager
        path = manager.path(checkpoint.step)
        try:
            with manager.reading(checkpoint.step):
                if manager.check(checkpoint.step, digests=True).time != checkpoint.time:
                    return None  # another one has taken its place
                snapshot = manager.load(checkpoint.step)
        except (DamagedError, FileNotFoundError) as error:
            self._passed(checkpoint, str(error))
            return None
        except FormatError as error:
            raise UserError(f"{error}; use the version that wrote it") from None
        except OSError as error:
            if error.errno != errno.EIO and path.is_dir():
                raise UserError(f"{error.filename or path}: cannot be read: {error.strerror}") from None
            self._passed(checkpoint, str(error))
            return None
        state.check(snapshot, str(path))
        self._queue.take(checkpoint)
        return snapshot

    def _passed(self, checkpoint: Checkpoint, why: str) -> None:
        if self._job.manager.path(checkpoint.step).is_dir():  # else removed, which the next look sees
            self._queue.pass_over(checkpoint)
            self.report(f"the checkpoint of step {checkpoint.step} is damaged and passed over: {why}")

    def record(self, command: EvaluatorCommand, kind: str, metrics: dict[str, float], secs: float) -> None:
        """Prints and keeps what an evaluation gave, having taken `secs`.

        Raises:
            UserError: It cannot be written.
        """
        checkpoint = command.checkpoint
        lag_steps, lag_secs = self._job.lag(checkpoint)
        values: dict[str, Any] = {**metrics, "secs": secs, "lag_steps": lag_steps, "lag_secs": lag_secs}
        about = {"checkpoint_time": checkpoint.time, **({"last": True} if checkpoint.averaged else {})}
        self._metrics.note(kind, checkpoint.step, **values, **about)
        self._events.write(kind, checkpoint.step, tensorboard_events.scalars(values))
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self.report(f"{kind} at step {checkpoint.step}: {shown}  lag {lag_steps} steps, {lag_secs:.0f} s")
        self._done.setdefault(kind, []).append(checkpoint)

    def evaluated(self, command: EvaluatorCommand) -> None:
        """All kinds of a checkpoint are done."""
        self._queue.evaluated(command.checkpoint)
        self._count += 1
        self._new_at = time.monotonic()


def evaluated_in(out: JobDir) -> dict[str, list[Checkpoint]]:
    """By kind, the checkpoints that `out`, an evaluator's folder, has evaluations of."""
    found: dict[str, list[Checkpoint]] = {}
    for record in out.records(is_evaluation):
        if (taken := record.number("checkpoint_time")) is not None:
            found.setdefault(record.kind, []).append(Checkpoint(record.step, taken, record.values.get("last") is True))
    return found


def _keys(done: list[Checkpoint]) -> Iterator[Checkpoint]:
    """`done`, those with averages also without: each kind has been evaluated at least so."""
    for checkpoint in done:
        yield checkpoint
        yield replace(checkpoint, averaged=False)


class _Strict(Lenient):
    """Results are what this is for: what cannot be written ends it."""

    @contextmanager
    def writing(self, path: Path, *errors: type[Exception]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
