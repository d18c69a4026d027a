"""The chief of an asynchronous job: the first parameter server, which also saves, evaluates and tells."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.checkpoint.format import Snapshot
from hpc_train.cluster.roles import Roles
from hpc_train.cluster.world import World
from hpc_train.data.pipeline import OpenInput
from hpc_train.data.sampler import DataOrder, DataProgress
from hpc_train.errors import JobEndedError
from hpc_train.estimator.evaluation import Evaluator
from hpc_train.estimator.health import Health
from hpc_train.estimator.loop import Outcome, tell_step
from hpc_train.estimator.session import Session
from hpc_train.estimator.state import ModelState
from hpc_train.monitoring.progress import Rate
from hpc_train.strategies.async_ps.clocks import mean_of
from hpc_train.strategies.async_ps.keras_part import KerasPart
from hpc_train.strategies.async_ps.layout import STOP, ServerLayout, places
from hpc_train.strategies.async_ps.optimizer import OptimizerVariables
from hpc_train.strategies.async_ps.partition import Partition, Piece
from hpc_train.strategies.async_ps.server import Applied, Peers, Server
from hpc_train.strategies.async_ps.window import Window
from hpc_train.strategies.async_ps.worker import aligned_zeros
from hpc_train.strategies.tensors import dtype_of, nbytes_of

if TYPE_CHECKING:
    import keras

POLL_SECS = 0.5


@dataclass(frozen=True)
class ServedInput:
    """How far the workers have read their data: on the whole, since each goes at its own pace."""

    data: OpenInput
    first_step: int
    batches_a_step: int

    @property
    def order(self) -> DataOrder | None:
        """The order in which it is read."""
        return self.data.order

    def progress_at(self, step: int) -> DataProgress:
        """How far it is read when `step` steps are done."""
        return self.data.progress_at(step, (step - self.first_step) * self.batches_a_step)


class ServedState:
    """The state of a job whose parameters lie on servers, as a checkpoint has it. For the first server.

    Batch-norm averages and the like are the means of what the workers carried last; random states are the first
    worker's.

    Args:
        part: Of this server; layouts: of all. whole: the variables of the optimizer of `model`, which is the one that
            is evaluated. carried: what workers carry.
    """

    def __init__(
        self,
        state: ModelState,
        part: KerasPart,
        server: Server,
        window: Window,
        layouts: Sequence[ServerLayout],
        partition: Partition,
        whole: OptimizerVariables,
        carried: Sequence[Any],
        model: keras.Model,
    ) -> None:
        self._state, self._part, self._server = state, part, server
        self._whole, self._carried, self._trainable = whole, carried, list(model.trainable_variables)
        self._random = {id(variable) for variable in state.random}
        self.peers = Peers(window, layouts)
        self._pieces = [partition.pieces(peer) for peer in range(len(layouts))]
        self._fetched = [aligned_zeros(self._places(pieces)[1]) for pieces in self._pieces]
        self._copies: dict[int, np.ndarray] = {}

    def average(self) -> None:
        """Nothing: `snapshot` does it."""

    def snapshot(
        self,
        progress: DataProgress,
        order: DataOrder | None,
        rng: dict[str, np.ndarray],
        tf_random_seed: int | None,
        best: dict[str, Any] | None,
    ) -> Snapshot:
        """A copy of all variables. It lies in memory that the next snapshot takes over."""
        self._copies = self._copies or self._state.copy()  # what nobody trains stays as it is
        self._part.write_state(self._fetched[0])
        self.peers.fetch_states(self._fetched[1:])
        for pieces, fetched in zip(self._pieces, self._fetched, strict=True):
            self._spread(pieces, fetched)
        self._spread_carried()
        return self._state.copied(progress, order, {}, tf_random_seed, best)

    def _places(self, pieces: Sequence[Piece]) -> tuple[list[int], int]:
        """Where KerasPart.write_state puts a server's pieces, their slots, and what is common."""
        sizes = [piece.nbytes for piece in pieces]
        slots = [piece.nbytes for piece in pieces for _ in self._whole.slots[piece.variable]]
        return places([*sizes, *slots, *map(nbytes_of, self._whole.common)])

    def _spread(self, pieces: Sequence[Piece], fetched: np.ndarray) -> None:
        targets = [(self._trainable[piece.variable], piece) for piece in pieces]
        targets += [(slot, piece) for piece in pieces for slot in self._whole.slots[piece.variable]]
        offsets = self._places(pieces)[0]
        for (variable, piece), offset in zip(targets, offsets, strict=False):
            flat = self._copies[id(variable)].reshape(-1)
            flat[piece.start : piece.stop] = fetched[offset : offset + piece.nbytes].view(piece.dtype)
        if pieces is self._pieces[0]:
            for variable, offset in zip(self._whole.common, offsets[len(targets) :], strict=True):
                copy = self._copies[id(variable)]
                copy[...] = fetched[offset : offset + copy.nbytes].view(copy.dtype).reshape(copy.shape)

    def _spread_carried(self) -> None:
        told = [array for array in self._server.carried if array is not None]
        if not told:
            return
        offsets, _ = places([nbytes_of(variable) for variable in self._carried])
        for variable, offset in zip(self._carried, offsets, strict=True):
            copy, dtype = self._copies[id(variable)], dtype_of(variable)
            values = [array[offset : offset + copy.nbytes].view(dtype).reshape(copy.shape) for array in told]
            if id(variable) in self._random:
                copy[...] = values[0]
            else:
                copy[...] = np.mean([np.asarray(value, np.float64) for value in values], axis=0).astype(dtype)


class Evaluating:
    """Evaluates snapshots in a thread, which makes no MPI calls, while this process serves. One at a time."""

    def __init__(self, state: ModelState, evaluator: Evaluator) -> None:
        self._state, self._evaluator = state, evaluator
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hpc_train-evaluation")
        self._pending: tuple[int, Future[dict[str, float]]] | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._moves = 0

    @property
    def busy(self) -> bool:
        """Whether an evaluation has been begun and not been taken."""
        return self._pending is not None

    def begin(self, step: int, snapshot: Snapshot) -> None:
        """Begins to evaluate `snapshot`, whose arrays must stay as they are until `wait_until_copied` has returned."""
        self._copied.clear()
        self._pending = step, self._pool.submit(self._evaluate, snapshot)

    def _evaluate(self, snapshot: Snapshot) -> dict[str, float]:
        try:
            self._state.assign(snapshot)
        finally:
            self._copied.set()
        return self._evaluator.evaluate(self._move)

    def _move(self) -> None:
        self._moves += 1

    def wait_until_copied(self) -> None:
        """Waits until the snapshot is needed no more."""
        self._copied.wait()

    def wait(self, moved: Callable[[], None]) -> tuple[int, dict[str, float]] | None:
        """Waits for the evaluation that goes on, if any, then as `take`; `moved` is called as long as it does."""
        seen = -1
        while self._pending is not None and not self._pending[1].done():
            if self._moves != seen:
                seen = self._moves
                moved()
            wait([self._pending[1]], POLL_SECS)
        return self.take()

    def take(self) -> tuple[int, dict[str, float]] | None:
        """The step and the metrics of an evaluation that has ended; None where none has. Raises what it raised."""
        if self._pending is None or not self._pending[1].done():
            return None
        (step, future), self._pending = self._pending, None
        return step, future.result()

    def close(self) -> None:
        """Ends the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Chief:
    """Serves, and does beside it what a chief does. See server.Events.

    Attributes:
        cut_short: Whether somebody asked all workers to leave before the last step.
        run: What happens beside the steps.
    """

    def __init__(self, session: Session, server: Server, state: ServedState, roles: Roles, part: KerasPart) -> None:
        s = self._s = session
        alone = World.alone()
        self._server, self._state, self._roles = server, state, roles
        self._input = ServedInput(s.data, s.first_step, roles.readers if s.config.max_staleness == 0 else 1)
        self._saving = s.saving(alone, state)
        self.run = s.run(alone, self._saving, self._input)
        self._evaluating = Evaluating(s.state, s.evaluator)
        self._health = Health(s.config.on_nan, can_go_back=False)
        self._rate = Rate()
        self._losses: list[float] = []
        self._waits: list[float | None] = [None] * roles.readers
        self._last_save = time.monotonic()
        self._step = self._told = s.first_step
        self.cut_short = False

    def train(self) -> int:
        """Serves until all workers have left, then saves and lets the other servers go; returns the step."""
        s = self._s
        assert s.reporting is not None
        try:
            with s.reporting.progress:
                s.watchdog.at("waiting for gradients", None)
                self._server.serve(self)
                self.cut_short = self._server.stopping and s.train_spec.max_steps != self._step
                if self._step > self._told:
                    self._tell(last=True)
            self._save()
            self._state.peers.release()
            if not self.cut_short and (ended := self._evaluating.wait(self._evaluation_moved)) is not None:
                self.run.tell_evaluation(*ended)
        finally:
            self._evaluating.close()
        return self._step

    def _evaluation_moved(self) -> None:
        self._s.watchdog.at("evaluation", self._step)

    def finish(self) -> tuple[dict[str, float], list[str]]:
        """The last evaluation, and the exports; as JSON can hold them."""
        if self._saving.snapshot is not None:
            self._s.state.assign(self._saving.snapshot)
        end = "max_steps" if self._step == self._s.train_spec.max_steps else "end of input"
        histogram = self._server.clocks.histogram
        staleness = f"staleness {mean_of(histogram):.2f} on average, {max(histogram, default=0)} at most"
        waits = [wait for wait in self._waits if wait is not None]
        outcome = Outcome(self._step, end, self._rate.mean, max(waits, default=None), staleness)  # type: ignore[arg-type]
        metrics, exports = self.run.finish(outcome)
        return metrics, [str(path) for path in exports]

    def applying(self) -> None:
        """An update begins."""
        self._s.watchdog.at(f"applying the gradient of step {self._step + 1}", None)

    def applied(self, update: Applied) -> None:
        """An update has been made, or left out; the next one has not begun."""
        s = self._s
        self._step += 1
        self._rate.step(update.examples)
        for worker, waited in zip(update.workers, update.waits, strict=True):
            self._waits[worker] = None if math.isnan(waited) else waited
        if update.bad:
            self._blame([worker + self._roles.servers for worker in update.bad])
        else:
            self._health.step_was_good()
            self._losses = [*self._losses, update.loss][-self._roles.readers :]
        last = self._step == s.train_spec.max_steps
        if self._step % s.config.save_summary_steps == 0 or last:
            self._tell(last)
        elif s.reporting is not None:
            tell_step(s.reporting, self._step, s.train_spec.max_steps, self._loss, self._rate, [], False)
        every = s.config.save_checkpoints_steps
        interval = s.config.checkpoint_interval_secs
        overdue = interval is not None and time.monotonic() - self._last_save >= interval
        if overdue or (every is not None and self._step % every == 0):
            self._save()
            if not last and not self._evaluating.busy and self.run.evaluation_is_due():
                assert self._saving.snapshot is not None
                self._evaluating.begin(self._step, self._saving.snapshot)
        self._look_around()
        s.watchdog.at("waiting for gradients", None)

    def idle(self) -> None:
        """There is nothing to apply."""
        self._look_around()

    def _look_around(self) -> None:
        if self._s.signals.received is not None:
            self._server.stop()
        if (ended := self._evaluating.take()) is not None:
            self.run.tell_evaluation(*ended)

    @property
    def _loss(self) -> float:
        """The mean over the last gradients, as many as there are workers."""
        return sum(self._losses) / len(self._losses) if self._losses else math.nan

    def _save(self) -> None:
        self._s.watchdog.at("checkpoint", self._step)
        self._evaluating.wait_until_copied()
        self._rate.pause()
        self._saving.save(self._step, self._input)
        self._last_save = time.monotonic()
        self._rate.resume()

    def _blame(self, ranks: list[int]) -> None:
        try:
            _, told = self._health.step_was_bad(self._step, ranks)
        except JobEndedError:
            self.run.before_halt(self._step)
            raise
        self._s.notes.say(f"warning: {told}")

    def _tell(self, last: bool) -> None:
        s, clocks = self._s, self._server.clocks
        assert s.reporting is not None
        self._told = self._step
        staleness = {
            "staleness_mean": mean_of(clocks.histogram),
            "staleness_max": float(max(clocks.histogram, default=0)),
        }
        s.reporting.status.update(
            staleness={"mean": staleness["staleness_mean"], "max": max(clocks.histogram, default=0)},
            steps_by_rank={str(w + self._roles.servers): n for w, n in enumerate(clocks.applied)},
        )
        waits = [*([None] * self._roles.servers), *self._waits]
        histograms = {"staleness": clocks.histogram}
        tell_step(
            s.reporting, self._step, s.train_spec.max_steps, self._loss, self._rate, waits, last, staleness, histograms
        )


class Beside:
    """What a server that is not the first one does beside its updates. See server.Events."""

    def __init__(self, window: Window, first: ServerLayout, session: Session) -> None:
        self._window, self._first, self._s, self._asked = window, first, session, False

    def applying(self) -> None:
        """An update begins."""
        self._s.watchdog.at("applying a gradient", None)

    def applied(self, update: Applied) -> None:
        """An update has been made."""
        self._look_around()
        self._s.watchdog.at("waiting for gradients", None)

    def idle(self) -> None:
        """There is nothing to apply."""
        self._look_around()

    def _look_around(self) -> None:
        """Passes a signal on to the first server."""
        if self._s.signals.received is not None and not self._asked:
            self._asked = True
            self._window.replace(0, self._first.word(STOP), 1)


def serve_beside(server: Server, window: Window, first: ServerLayout, session: Session) -> None:
    """Serves as another than the first server, until that one lets this one go."""
    session.watchdog.at("waiting for gradients", None)
    server.serve_until_released(Beside(window, first, session))
