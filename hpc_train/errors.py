"""The few exceptions that a caller can catch, and the exit codes that the command line gives them."""

from __future__ import annotations

EXIT_FAILED = 1
"""A rank raised an exception while the job ran; its traceback has been printed."""
EXIT_BAD_INPUT = 2
"""The job file, the data, the model or the job-dir cannot be used; nothing was written."""
EXIT_STOPPED = 3
"""A signal asked the job to stop; it saved a checkpoint first and goes on when it is started again."""


class UserError(ValueError):
    """A mistake in what the user gave: the message says what is wrong, where, and what is allowed."""


class RankError(RuntimeError):
    """Another rank failed in a step that all ranks take together; the message names the rank and its error."""
