"""How a job ended: what each exit code means, and what starts the job again. The one table of it; pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Flag
from typing import Literal

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 3
EXIT_TERMINATED = 4
EXIT_INTERRUPTED = 5
EXIT_STALLED = 6
EXIT_NOT_FINITE = 7
EXIT_NOT_REQUEUED = 8
EXIT_NOT_SAVED = 9
EXIT_LOST = 10
EXIT_CANCELLED = 11
EXIT_NO_SCHEDULER = 12
EXIT_AT_ONCE = 130
EXIT_LOST_NODE = 205

STOP_CODES = {"SIGUSR1": EXIT_STOPPED, "SIGTERM": EXIT_TERMINATED, "SIGINT": EXIT_INTERRUPTED}
"""The exit code of a job that has saved and left, by the signal that asked it to."""


class Again(Flag):
    """What starts a job again without anybody's help; FINAL: nothing does. See also is_requeued."""

    FINAL = 0
    RESTART = 1
    """`hpc-train launch --max-restarts`: it was a crash."""
    REQUEUE = 2
    """Its queue, where that had asked it to stop."""


@dataclass(frozen=True)
class Outcome:
    """What an exit code means.

    Attributes:
        meaning: One sentence.
        state: Of the job. "lost" is in no status.json: nobody was left to write it. None: it does not concern a job.
    """

    name: str
    meaning: str
    state: Literal["succeeded", "failed", "stopped", "cancelled", "lost"] | None
    again: Again = Again.FINAL


_CRASH = Again.RESTART | Again.REQUEUE

OUTCOMES = {
    0: Outcome("succeeded", "trained to the end, evaluated, exported", "succeeded"),
    EXIT_FAILED: Outcome(
        "failed",
        "a rank failed: its traceback is printed once, with its number, and kept in `logs/`; all ranks have ended",
        "failed",
        Again.RESTART,
    ),
    EXIT_BAD_INPUT: Outcome(
        "bad input",
        "something in the job file, the data, the model or the job-dir cannot be used; nothing was written, but where "
        "ids of a batch are outside a table",
        "failed",
    ),
    EXIT_STOPPED: Outcome(
        "stopped",
        "stopped by SIGUSR1 (Slurm's warning) after saving a checkpoint; start the same job again and it goes on",
        "stopped",
        Again.REQUEUE,
    ),
    EXIT_TERMINATED: Outcome("terminated", "stopped by SIGTERM, otherwise as 3", "stopped", Again.REQUEUE),
    EXIT_INTERRUPTED: Outcome("interrupted", "stopped by SIGINT (Ctrl-C), otherwise as 3", "stopped", Again.REQUEUE),
    EXIT_STALLED: Outcome(
        "stalled", "a rank stopped answering for `stall_timeout_secs`; it is named", "failed", _CRASH
    ),
    EXIT_NOT_FINITE: Outcome(
        "not finite",
        "loss, gradients or variables are not finite, or a rank's variables differ from the others'",
        "failed",
    ),
    EXIT_NOT_REQUEUED: Outcome(
        "not requeued",
        "the batch script: the job is not finished, and not back in the queue; what to do is printed",
        "stopped",
    ),
    EXIT_NOT_SAVED: Outcome(
        "not saved",
        "a checkpoint could not be written, and the one before stays; make room, or have the file system mended, and "
        "start the same job again",
        "failed",
    ),
    EXIT_LOST: Outcome(
        "lost",
        "`hpc-train wait`, `hpc-train evaluate --follow`: the queue no longer knows the job, and it left no end",
        "lost",
    ),
    EXIT_CANCELLED: Outcome("cancelled", "`hpc-train wait`: the job was cancelled", "cancelled"),
    EXIT_NO_SCHEDULER: Outcome("no scheduler", "the scheduler does not answer, or cannot be asked from here", None),
    EXIT_AT_ONCE: Outcome("ended at once", "a second Ctrl-C: left at once, without saving", "failed", Again.REQUEUE),
    EXIT_LOST_NODE: Outcome("lost node", "`mpirun` (Open MPI) or `srun` lost one of the job's nodes", "failed", _CRASH),
}
"""By exit code; those of a signal's death (128 + its number) are KILLED, all others OTHER."""
KILLED = Outcome("killed", "a rank was killed by signal n, such as 137 for SIGKILL", "failed", _CRASH)
OTHER = Outcome("other", "a rank, or a program of your own, left with a code of its own", "failed", _CRASH)


def outcome_of(code: int) -> Outcome:
    """What `code` means. Pure."""
    return OUTCOMES.get(code) or (KILLED if signal_name(code) else OTHER)


def is_requeued(code: int, warned: bool, ended: bool) -> bool:
    """Whether a queue starts a job again whose ranks ended with `code`. Pure.

    Args:
        warned: It had asked them to stop, by SIGUSR1.
        ended: It has ended them itself: by preemption, at the time limit, or with a node that was lost.
    """
    again = outcome_of(code).again
    return (warned and Again.REQUEUE in again) or (ended and again != Again.FINAL)


def signal_name(code: int) -> str | None:
    """The signal of a death that an exit code reports ("SIGKILL" for 137), or None. Pure."""
    try:
        return signal.Signals(code - 128).name if code > 128 else None
    except ValueError:
        return None


def describe_end(code: int) -> tuple[Literal["stopped", "failed"], str]:
    """The state of a job whose ranks ended with `code`, not 0, and reported nothing, and a sentence about it. Pure."""
    name = signal_name(code)
    message = f"the ranks ended with code {code}" + (f" (killed by {name})" if name else "")
    return ("stopped" if outcome_of(code).state == "stopped" else "failed"), message
