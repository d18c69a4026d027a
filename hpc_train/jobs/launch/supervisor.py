"""Starts a job again after a crash: how often, after how long, and when it is of no use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpc_train.outcome import EXIT_LOST_NODE, Again, outcome_of

STALLED_RESTARTS = 3
"""So many restarts in a row without a newer checkpoint end the restarts."""
LONGEST_WAIT_SECS = 60.0


@dataclass(frozen=True)
class RunEnd:
    """How one run of all ranks ended: their exit code, and in words why; `reported`: a rank has reported it itself."""

    code: int
    why: str
    reported: bool = False


def wait_secs(restart: int) -> float:
    """How long to wait before restart number `restart` (the first is 1): not at all, then 2, 4, 8 … 60 s. Pure."""
    return min(LONGEST_WAIT_SECS, 2.0 ** min(restart - 1, 10)) if restart > 1 else 0.0


def supervise(
    run: Callable[[int], RunEnd],
    newest_step: Callable[[], int | None],
    max_restarts: int,
    wait: Callable[[float], bool],
    report: Callable[[str], None],
    ask: Callable[[], str | None] = lambda: None,
) -> int:
    """Runs a job, and again after each crash, at most `max_restarts` times more; returns the last exit code.

    Args:
        run: Runs all ranks to their end, given how many restarts there have been.
        newest_step: The step of the newest checkpoint; None where there is none.
        wait: Waits so many seconds; False where somebody wants the job to stop, then or before.
        report: Prints a line for the user.
        ask: Asks which hosts are left; why they are too few to go on with, which ends the job with EXIT_LOST_NODE, or
            None.
    """
    restarts, stalled, before = 0, 0, newest_step()
    while True:
        ended = run(restarts)
        after = newest_step()
        stalled = 0 if after is not None and (before is None or after > before) else stalled + (restarts > 0)
        if max_restarts == 0 or Again.RESTART not in outcome_of(ended.code).again:
            if not ended.reported:
                report(ended.why)
            return ended.code
        begin = "the beginning" if after is None else f"step {after}"
        if restarts == max_restarts:
            report(f"{ended.why}; not restarted: --max-restarts allows {max_restarts}")
            return ended.code
        if stalled >= STALLED_RESTARTS:
            report(f"{ended.why}; not restarted: {stalled} restarts in a row have not come beyond {begin}")
            return ended.code
        secs, before = wait_secs(restarts + 1), after
        few = ask()
        if not wait(0):
            report(f"{ended.why}; not restarted: it was asked to stop")
            return ended.code
        if few is not None:
            report(f"{ended.why}; not restarted: {few}")
            return EXIT_LOST_NODE
        when = f"in {secs:.0f} s" if secs else "at once"
        report(f"{ended.why}; restart {restarts + 1} of {max_restarts} {when}, from {begin}")
        if not wait(secs):
            report("not restarted: it was asked to stop")
            return ended.code
        restarts += 1
