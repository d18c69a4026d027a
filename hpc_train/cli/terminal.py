"""What all commands print for people: errors, warnings, and tables as wide as the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from hpc_train import stdio
from hpc_train.errors import SchedulerError, UserError
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_NO_SCHEDULER
from hpc_train.text import LINES, visible

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


@contextmanager
def answer() -> Iterator[None]:
    """What is printed in it is all that the command is for, which ends where that cannot be printed.

    The exit code is then EXIT_FAILED; 0 where its reader has left, as in `| head`. Other commands go on: what
    they do counts, not whether they can report it.
    """
    code: Any = 0
    try:
        with stdio.required():
            try:
                yield
            except SystemExit as done:
                code = done.code
                raise
    except stdio.OutputError as error:
        sys.exit(code if error.left else EXIT_FAILED)


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
            screen.print(one, markup=False, emoji=False)
    text = captured.get()
    sys.stdout.write(text if screen.is_terminal else re.sub(" +$", "", text, flags=re.MULTILINE))
    sys.stdout.flush()


def report_lost_output() -> None:
    """Warns where something of what was printed is lost, unless nobody reads it."""
    lost = stdio.lost_output()
    if lost is not None and not lost.left:
        warn(f"{lost}; what was printed is incomplete")


class Verbs(TyperGroup):
    """The commands of hpc-train: what is wrong with their words can be shown, whatever these are."""

    def make_context(self, *args: Any, **named: Any) -> Any:
        """Of the options before the command."""
        with _visible_mistakes():
            return super().make_context(*args, **named)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        with _visible_mistakes():
            return super().invoke(ctx)


@contextmanager
def _visible_mistakes() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # one of click, or of typer's own copy of it
            error.message = visible(error.message)  # type: ignore[attr-defined]
        raise


def say(text: str) -> None:
    """Prints lines on standard output."""
    print(visible(text, LINES), flush=True)


def answered(question: str) -> bool:
    """Asks, and whether the answer is y or yes."""
    print(visible(question), end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def complain(error: object) -> int:
    """Prints what is wrong; returns the exit code."""
    for line in visible(str(error), LINES).split("\n"):
        print(f"hpc-train: error: {line}", file=sys.stderr)
    return EXIT_NO_SCHEDULER if isinstance(error, SchedulerError) else EXIT_BAD_INPUT


def warn(text: str) -> None:
    """Prints a line on standard error."""
    print(f"hpc-train: {visible(text)}", file=sys.stderr, flush=True)
