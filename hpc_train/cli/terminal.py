"""What all commands print for people: errors, warnings, and tables as wide as the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from hpc_train.errors import SchedulerError, UserError
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_NO_SCHEDULER

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 100_000
"""Of tables in a pipe, where nothing is cut or wrapped."""


@contextmanager
def errors() -> Iterator[None]:
    """Reports what a user has to do something about, and exits."""
    try:
        yield
    except (UserError, SchedulerError) as error:
        sys.exit(complain(error))


def console() -> Console:
    """A console on standard output: colours and its width on a terminal; wide and plain in a pipe."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=PIPE_WIDTH, force_terminal=False, no_color=True, highlight=False)


def show(screen: Console, *what: RenderableType) -> None:
    """Prints to standard output as on `screen`; without the blanks that rich fills lines up with in a pipe."""
    with screen.capture() as captured:
        for one in what:
            screen.print(one)
    text = captured.get()
    sys.stdout.write(text if screen.is_terminal else re.sub(" +$", "", text, flags=re.MULTILINE))
    sys.stdout.flush()


class Verbs(TyperGroup):
    """The commands of hpc-train: where who reads their output leaves, as in `| head`, that is no error."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; its exit code stays, or is 0 where it could not go on printing."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.exit(0)
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    print(end="", file=stream, flush=True)
                except BrokenPipeError:  # what is left must not fail once more when Python ends
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(error: object) -> int:
    """Prints what is wrong; returns the exit code."""
    with suppress(BrokenPipeError):
        for line in str(error).splitlines():
            print(f"hpc-train: error: {line}", file=sys.stderr)
    return EXIT_NO_SCHEDULER if isinstance(error, SchedulerError) else EXIT_BAD_INPUT


def warn(text: str) -> None:
    """Prints a line on standard error."""
    with suppress(BrokenPipeError):
        print(f"hpc-train: {text}", file=sys.stderr, flush=True)
