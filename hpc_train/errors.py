"""The few exceptions that a caller can catch, and the exit codes that the command line gives them."""

from __future__ import annotations

EXIT_FAILED = 1
"""A rank raised an exception while the job ran; its traceback has been printed."""
EXIT_BAD_INPUT = 2
"""The job file, the data, the model or the job-dir cannot be used; nothing was written."""
EXIT_STOPPED = 3
"""SIGUSR1 (Slurm's warning) asked the job to stop; it saved a checkpoint first and goes on when it is started again."""
EXIT_TERMINATED = 4
"""SIGTERM did; otherwise as EXIT_STOPPED."""
EXIT_INTERRUPTED = 5
"""SIGINT (Ctrl-C) did; otherwise as EXIT_STOPPED."""
EXIT_STALLED = 6
"""A rank stopped answering for longer than `stall_timeout_secs`; the watchdog ended the job."""
EXIT_NOT_FINITE = 7
"""Loss, gradients or variables were not finite, or a replica's variables differed from the others'."""
EXIT_NOT_REQUEUED = 8
"""slurm/train.sh: the job is not finished and not back in the queue: scontrol did not put it there, or three runs in a
row saved nothing."""
EXIT_NOT_SAVED = 9
"""A checkpoint could not be written; the one before it stays."""
EXIT_LOST = 10
"""hpc-train wait: Slurm no longer knows the job, and it left no end."""
EXIT_CANCELLED = 11
"""hpc-train wait: the job was cancelled."""
EXIT_NO_SCHEDULER = 12
"""Slurm does not answer, or cannot be asked from here."""
EXIT_AT_ONCE = 130
"""A second Ctrl-C: left at once, without saving."""


class UserError(ValueError):
    """A mistake in what the user gave: the message says what is wrong, where, and what is allowed."""


class SchedulerError(RuntimeError):
    """Slurm does not answer: nothing is known, and nothing was done."""


class RankError(RuntimeError):
    """Another rank failed in a step that all ranks take together; the message names the rank and its error."""


class JobEndedError(RuntimeError):
    """The job has to end for a reason that its message tells whole; no traceback helps.

    Attributes:
        code: The exit code.
        rank: The rank that is to blame, None where it is not a single one.
    """

    def __init__(self, message: str, code: int, rank: int | None = None) -> None:
        super().__init__(message)
        self.code, self.rank = code, rank
