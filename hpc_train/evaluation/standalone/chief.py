"""What the chief of a separate evaluator does alone: chooses checkpoints, loads them, and keeps the results."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manifest import DamagedError, FormatError
from hpc_train.config.specs import EvalTimes
from hpc_train.errors import UserError
from hpc_train.evaluation.runner import EvaluationResult
from hpc_train.evaluation.schedule import Checkpoint, EvaluationSchedule
from hpc_train.evaluation.standalone.job_watcher import Ask, JobWatcher, Training
from hpc_train.folders import make_folder
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.records import is_evaluation
from hpc_train.model.model_state import ModelState
from hpc_train.outcome import EXIT_FAILED, EXIT_LOST
from hpc_train.resilience.job_lock import JobLock
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.metrics import MetricsWriter
from hpc_train.telemetry.units import counted
from hpc_train.text import NAMED, listed

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
        data: Other shards for the evaluation sets, PATTERN or NAME=PATTERN each.
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
    data: Sequence[str] = ()


@dataclass(frozen=True)
class EvaluatorCommand:
    """What all ranks do next: leave with `code`, evaluate a checkpoint on the sets called `numbers`, or wait."""

    code: int | None = None
    step: int | None = None
    time: float = 0.0
    averaged: bool = False
    numbers: Sequence[int] = ()

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
        self._schedule = self._new_schedule([()])
        self._count, self._begun, self._last_line, self._seen = 0, False, "", 0
        self._new_at, self._looked_at = time.monotonic(), float("-inf")

    def report(self, text: str) -> None:
        """Prints a line."""
        log.info(text)

    def begin(self, kinds: Sequence[str], averages: bool) -> None:
        """The model is there: opens the results, and looks at what they hold already.

        Raises:
            UserError: `out` cannot be written, or another evaluator writes there.
        """
        out = self._request.out
        self._job.averages = averages
        try:
            make_folder(out)
        except OSError as error:
            raise UserError(f"{out}: cannot be made: {error.strerror}; choose another folder by --out") from None
        try:
            lock = JobLock(out)
            lock.acquire()
        except UserError as error:
            raise UserError(f"--out: {error}") from None
        self._stack.callback(lock.release)
        before = evaluated_in(JobDir(out)) if self._request.follow else {}
        done = [before.get(kind, []) for kind in kinds]
        self._schedule, self._begun = self._new_schedule(done), bool(before)
        self._metrics = self._stack.enter_context(MetricsWriter(out, _Strict()))
        self.report(f"evaluating {self._request.job_dir}; results in {out}")
        if by_all := set.intersection(*({checkpoint.key for checkpoint in checkpoints} for checkpoints in done)):
            self.report(f"{len(by_all)} checkpoints were evaluated earlier")

    def _new_schedule(self, done: Sequence[Iterable[Checkpoint]]) -> EvaluationSchedule:
        times = EvalTimes(start_delay_secs=0, throttle_secs=0, eval_every_checkpoint=self._request.every_checkpoint)
        return EvaluationSchedule([times for _ in done], 0, done)

    def command(self) -> EvaluatorCommand:
        """What to do now.

        Raises:
            UserError: Nothing is followed, and there is no such checkpoint, or none that is whole.
        """
        self._looked_at = time.monotonic()
        training, there = self._job.look()
        self._see(there)
        due = self._schedule.due(0)
        if due is not None:
            chosen = due.checkpoint
            return EvaluatorCommand(None, chosen.step, chosen.time, chosen.averaged, due.numbers)
        if not self._request.follow:
            if self._count == 0:
                self._complain()
            return EvaluatorCommand(0)
        if training in ("ended", "lost"):
            return self._last_command(training)
        limit = self._request.idle_timeout_secs
        if limit is not None and time.monotonic() - self._new_at >= limit:
            self.report(f"nothing new for {limit:.0f} s (--idle-timeout-secs): training is {training}")
            return EvaluatorCommand(EXIT_FAILED)
        self._report_wait(training)
        return EvaluatorCommand()

    def _see(self, there: list[Checkpoint]) -> None:
        wanted = self._request.step
        there = [c for c in there if wanted is None or c.step == wanted]
        if (seen := hash(tuple(there))) != self._seen:
            self._seen, self._new_at = seen, time.monotonic()
        if gone := list(self._schedule.see(there)):
            self._report_gone(gone)

    def _report_gone(self, gone: Sequence[Checkpoint]) -> None:
        if len(gone) == 1:
            self.report(f"skipped the checkpoint of step {gone[0].step}: it was removed before its turn")
            return
        steps = listed((str(checkpoint.step) for checkpoint in gone), most=NAMED)
        self.report(f"skipped {len(gone):,} checkpoints that were removed before their turn: steps {steps}")

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
        evaluated = f"evaluated {counted(self._count, 'checkpoint')}"
        if training == "lost":
            self.report(f"training was killed and left no word ({self._job.why}); {evaluated}")
            return EvaluatorCommand(EXIT_LOST)
        self.report(f"training has ended ({self._job.why}); {evaluated}")
        return EvaluatorCommand(0)

    def _report_wait(self, training: Training) -> None:
        state, step = self._job.status.get("state"), self._job.status.get("step")
        text = {
            "awaited": f"waiting for the job in {self._request.job_dir} to begin",
            "away": f"training is {state} at step {step}; waiting for it to go on",
        }.get(training, "waiting for the first checkpoint" if not self._count and not self._begun else "")
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
        return state.fit(snapshot, str(path))

    def _passed(self, checkpoint: Checkpoint, why: str) -> None:
        if self._job.manager.path(checkpoint.step).is_dir():
            self._schedule.pass_over(checkpoint)
            self.report(f"the checkpoint of step {checkpoint.step} is damaged and passed over: {why}")
        elif self._request.every_checkpoint:
            self._report_gone([checkpoint])

    def record(self, command: EvaluatorCommand, result: EvaluationResult) -> None:
        """Prints and keeps what an evaluation gave.

        Raises:
            UserError: It cannot be written.
        """
        lag_steps, lag_secs = self._job.lag(command.checkpoint)
        result.write(self._metrics, lag_steps, lag_secs, command.averaged)
        self.report(f"{result.text}  lag {lag_steps} steps, {lag_secs:.0f} s")

    def evaluated(self) -> None:
        """A checkpoint has been evaluated on all sets."""
        self._count += 1
        self._new_at = time.monotonic()


def evaluated_in(out: JobDir) -> dict[str, list[Checkpoint]]:
    """By kind, the checkpoints that `out`, an evaluator's folder, has evaluations of."""
    found: dict[str, list[Checkpoint]] = {}
    for record in out.records(is_evaluation):
        if (taken := record.number("checkpoint_time")) is not None:
            found.setdefault(record.kind, []).append(Checkpoint(record.step, taken, record.values.get("last") is True))
    return found


class _Strict(Lenient):
    """Results are what this is for: what cannot be written ends it."""

    @contextmanager
    def writing(self, path: Path, *errors: type[Exception]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
