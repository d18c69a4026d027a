"""Reopened: a context that makes room for the next one of its kind, as the training input does after a rollback."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Reopened:
    """A context of which one is open at a time: `enter` leaves the one before. A context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Reopened:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Leaves what was entered before, and enters `context`."""
        self._stack.close()
        return self._stack.enter_context(context)
