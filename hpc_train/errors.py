"""The few exceptions that a caller can catch, and what their messages have in common."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave: the message says what is wrong, where, and what is allowed."""


class SchedulerError(RuntimeError):
    """The scheduler does not answer: nothing is known, and nothing was done."""


class RankError(RuntimeError):
    """Another rank failed in a step that all ranks take together; the message names the rank and its error."""


class JobEndedError(RuntimeError):
    """The job has to end for a reason that its message gives in full; no traceback helps.

    Attributes:
        code: The exit code, one of `hpc_train.outcome`.
        rank: The rank that is to blame, None where it is not a single one.
    """

    def __init__(self, message: str, code: int, rank: int | None = None) -> None:
        super().__init__(message)
        self.code, self.rank = code, rank


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """The part of a message that proposes the most similar of the names that are allowed; empty where none is. Pure."""
    near = difflib.get_close_matches(name, allowed, n=1)
    return f"did you mean `{near[0]}`? " if near else ""
