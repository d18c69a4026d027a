"""Watchdog: a job in which a rank stops answering ends in bounded time, and reports which rank it was.

A collective call cannot know why another rank does not come. So the main thread notes what it begins (`at`), and a
thread beside it looks whether that goes on. While all ranks move, nothing is sent and nothing is written. A rank that
has not moved for half of the time reports it in a file (see stall_folder.py); the others answer it. At the full time
the lowest rank without progress judges (see stall.py) and ends the job, or another in its place a little later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpc_train import stdio
from hpc_train.distributed.world import World
from hpc_train.files import create
from hpc_train.folders import make_folder
from hpc_train.outcome import EXIT_STALLED
from hpc_train.resilience.bounded import Bounded
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.places import Places, place_of
from hpc_train.resilience.stall import WAITS, Verdict, doing, judge
from hpc_train.resilience.stall_folder import StallFolder
from hpc_train.telemetry.status import mark_ended
from hpc_train.text import LINES, visible

T = TypeVar("T")
End = Callable[[str, "int | None"], None]
Mark = tuple[str, int | None, float]
"""Phase, step, and time.monotonic() when the main thread came there."""

STAND_INS = 4
"""Ranks that may judge: the lowest ones, each a second after the one before it, in case that is no longer able to."""
GRACE_SECS = 10.0
"""The time that another rank has to end the job once it has announced it, and MPI to do it."""

_OTHERS = f"{WAITS}the others ("
TRAINING = "training step"
"""The phase of a step that is being made."""


def watch_over(world: World, job_dir: Path, failure: FailureReport, timeout_secs: float) -> Watchdog:
    """The watchdog of this rank, to be entered by the main thread. Collective.

    A stalled job ends with exit code 6, one message on stderr, the state failed in status.json, and, beside
    `failure`'s report, a folder stall-<run_id> with what every rank was doing. 0 seconds: it does nothing.
    """
    places = Places(job_dir, world.size, world.rank, place_of(world.host, os.getpid()))
    folder = failure.path.with_name(f"stall-{failure.path.stem.removeprefix('failure-')}")
    end = end_job(world, job_dir, failure)
    watchdog = Watchdog(world.rank, world.host, places, folder, timeout_secs, end)
    world.on_wait = watchdog.waits
    failure.at = watchdog.place
    return watchdog


class Watchdog:
    """Watches the thread that calls `at`. A context manager: leaving it ends the watch.

    Args:
        rank, host: This rank, and its node.
        places: Host and process of every rank, for messages; looked up where one is to be named.
        folder: All ranks see it; made when a rank makes no progress, removed when all move again or at a normal end.
        timeout_secs: The time without a call of `at` on any of the ranks after which the job is ended, within
            about 15 s. A rank that moves while others wait for it is waited for. 0: no thread, no watch.
        end: Called with a message and the lowest blamed rank, None where nobody can be blamed; ends the job.
        clock: In seconds, from whatever point; steadily rising.

    Attributes:
        gone: Gives the ranks that have left, or are known to be lost: nobody waits for them. May take its time.

    A process that was stopped and goes on, alone or with its node, starts to count anew. One whose watchdog cannot
    run, since code outside Python keeps Python's lock, is a rank that does not answer; a job of it alone goes on.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        places: Sequence[str],
        folder: Path,
        timeout_secs: float,
        end: End,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._host, self._places = rank, host, places
        self._end, self._timeout, self._clock = end, timeout_secs, clock
        self.gone: Callable[[], Collection[int]] = tuple
        self._period, self._poll = min(1.0, timeout_secs / 20), min(30.0, timeout_secs / 16)
        self._slack = max(5 * self._period, 1.0)
        self._folder = StallFolder(folder, rank, timeout_secs / 2)
        self._files = Bounded(max(2.0, min(10.0, timeout_secs / 10)))
        self._awake = self._anew = clock()
        self._mark: Mark = ("start", 0, self._awake)
        self._next_round, self._next_judgement = self._awake + self._poll, 0.0
        self._standing, self._claimed, self._claimed_since, self._left = False, False, 0.0, False
        self._stop, self._deciding = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="hpc_train-watchdog", daemon=True)

    def at(self, phase: str, step: int | None) -> None:
        """The main thread moves on to `phase` of `step`. Costs some 0.3 µs.

        Steps show who is behind; None in jobs whose ranks do not keep step.

        Phases are free text that fits "rank 1 has not moved for 600 s: <phase> at step 41". Those that begin with
        "waiting for " mean that others have to come: "waiting for input", "waiting for the chief".
        """
        self._mark = (phase, step, self._clock())

    def place(self) -> tuple[str | None, int | None]:
        """What the main thread is at, in words, and the last step that is done by then; None where not known."""
        phase, step, _ = self._mark
        if phase == "start":
            return "the start", None
        phase = phase[len(_OTHERS) : -1] if phase.startswith(_OTHERS) else phase
        return doing(phase, step), step - 1 if step is not None and phase == TRAINING else step

    def waits(self, begins: bool) -> None:
        """The main thread begins or ends to wait for the other ranks, in the phase and step that it is in.

        To be called around collective calls: a rank that does something while others wait for it can then be named.
        """
        phase, step, _ = self._mark
        if begins and not phase.startswith(_OTHERS):
            phase = f"{_OTHERS}{phase})"
        elif not begins and phase.startswith(_OTHERS):
            phase = phase[len(_OTHERS) : -1]
        self._mark = (phase, step, self._clock())

    def __enter__(self) -> Watchdog:
        if self._timeout > 0:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._timeout <= 0:
            return
        # A watchdog that is ending the job holds the lock, and this process has not long to live.
        held = self._deciding.acquire(timeout=3 * GRACE_SECS)
        self._left = True
        if held:
            self._deciding.release()
        if self._thread.is_alive():
            self._thread.join(self._files.limit_secs + 1)
        with suppress(OSError, TimeoutError):
            self._files.call(self._folder.clean)

    def _watch(self) -> None:
        while not self._stop.wait(self._period):
            self.look()

    def look(self) -> None:
        """Looks once at what the main thread does, and judges where it is time; the watch does so every period."""
        self._woke(self._period)
        mark = self._mark
        secs, now = self._stood(mark), self._clock()
        standing = secs >= self._timeout / 2
        if standing != self._standing or now >= self._next_round:
            self._standing, self._next_round = standing, now + self._poll
            try:
                self._ask(partial(self._report, mark, secs, standing))
            except (OSError, TimeoutError):
                self._next_round = now + self._period
        if secs < self._timeout:
            self._next_judgement = self._claimed_since = 0.0
        elif now >= self._next_judgement:
            self._judge(mark, secs)

    def _stood(self, mark: Mark) -> float:
        """Seconds since `mark` in which this process was not stopped itself."""
        return self._clock() - max(mark[2], self._anew)

    def _woke(self, allowed_secs: float) -> None:
        """Starts to count anew if more than `allowed_secs` went by since the last call: this process was stopped."""
        now = self._clock()
        if now - self._awake > allowed_secs + self._slack:
            self._anew, self._next_round = now, 0.0
        self._awake = now

    def _ask(self, action: Callable[[], T]) -> T:
        try:
            return self._files.call(action)
        finally:
            self._woke(self._files.limit_secs)

    def _report(self, mark: Mark, secs: float, standing: bool) -> None:
        report: dict[str, Any] = {
            "rank": self._rank,
            "host": self._host,
            "pid": os.getpid(),
            "phase": mark[0],
            "step": mark[1],
            "secs": round(secs, 3),
        }
        if standing:
            self._folder.report({**report, "stacks": stacks()})
        else:
            self._folder.answer(report)

    def _judge(self, mark: Mark, secs: float) -> None:
        try:
            found = self._ask(partial(self._decide, mark, secs))
        except (OSError, TimeoutError) as error:
            if secs < self._timeout + min(self._rank, STAND_INS) + self._files.limit_secs:
                return
            reason = f"cannot be used: {error}" if str(error) else f"does not answer: {self._folder.path}"
            found = Verdict(
                f"rank {self._rank} ({self._places[self._rank]}) has not moved for {secs:.0f} s: {doing(*mark[:2])}; "
                f"it cannot ask the others, since the job-dir {reason}"
            )
        if not isinstance(found, Verdict):
            self._next_judgement = self._clock() + found
            return
        with self._deciding:
            if self._left or self._mark is not mark or self._stood(mark) < self._timeout:
                if self._claimed:
                    self._claimed = False
                    with suppress(OSError, TimeoutError):
                        self._ask(self._folder.withdraw)
                return
            self._end(
                f"{found.message}; ended because of stall_timeout_secs={self._timeout:g}; "
                f"what the ranks were doing: {self._folder.path}",
                found.blamed[0] if found.blamed else None,
            )
            self._stop.set()

    def _decide(self, mark: Mark, secs: float) -> Verdict | float:
        """The verdict, or the seconds until it is to be looked for again."""
        message = self._folder.verdict()
        if message is not None:  # another rank is ending the job, and may not succeed
            self._claimed_since = self._claimed_since or self._clock()
            return Verdict(message) if self._clock() - self._claimed_since > GRACE_SECS else self._period
        self._report(mark, secs, standing=True)
        before = self._folder.lower(STAND_INS)
        if before == STAND_INS:
            return self._period if secs < self._timeout + GRACE_SECS else self._poll
        if secs < self._timeout + before:
            return self._period
        reports = self._folder.read()
        verdict = judge(reports, self._places, secs, self._timeout, self.gone())
        if verdict is None:
            youngest = min(report.secs for report in reports.values())
            return max(self._period, min(self._poll, self._timeout - youngest))
        self._claimed = self._folder.claim(verdict.message)
        return verdict if self._claimed else self._period


def stacks() -> dict[str, list[str]]:
    """Where every thread of this process is: by name, "file:line function", the innermost last. Opens no file."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = {}
    for ident, innermost in sys._current_frames().items():
        frames = traceback.walk_stack(innermost)
        lines = [f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}" for frame, line in frames]
        found[f"{names.get(ident, 'thread')} ({ident})"] = lines[::-1]
    return found


def end_job(world: World, job_dir: Path, failure: FailureReport) -> End:
    """A function that ends all ranks with code 6 after logging why, unless a rank has reported a failure before."""

    def end(message: str, blamed: int | None) -> None:
        def claim() -> bool:
            try:
                make_folder(failure.path.parent)
                with open(create(failure.path), "w", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{message}\n")
            except FileExistsError:
                return False
            mark_ended(job_dir, blamed, None, message)
            return True

        first = True
        with suppress(OSError, TimeoutError):
            first = Bounded(GRACE_SECS / 2).call(claim)
        if not first:
            time.sleep(GRACE_SECS)  # a rank that has reported a failure is ending this one
        _leave_after(GRACE_SECS)
        if first:
            stdio.write_directly(f"hpc-train: error: {visible(message, LINES)}")
        world.abort(EXIT_STALLED)

    return end


def _leave_after(secs: float) -> None:
    """Ends this process if it still runs by then: MPI_Abort waits for mpirun, and holds Python's lock meanwhile."""
    import ctypes

    def leave() -> None:
        time.sleep(secs)
        os._exit(EXIT_STALLED)

    threading.Thread(target=leave, daemon=True).start()
    # Where no Python thread can run, only a signal is left; its default action ends the process.
    ctypes.CDLL(None).signal(int(signal.SIGALRM), None)
    signal.setitimer(signal.ITIMER_REAL, secs + 2)
