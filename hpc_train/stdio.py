r"""Standard input, output and error of a program: open, whatever it was started with, and never in its way.

What cannot be written there, since a disk is full or nobody reads it any more, is lost and ends nothing; only in
`required()` it raises. Characters that the locale cannot show are written as escapes such as \u2013. Local.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class OutputError(Exception):
    """Standard output cannot be written.

    Attributes:
        left: Its reader has left, as in `| head`.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {error.strerror}")
        self.left = error.errno == errno.EPIPE


class _Output(io.FileIO):
    """A descriptor to write to.

    Attributes:
        lost: The first error of a write.
        is_required: Whether a write that fails raises OutputError.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.name = name
        self.lost: OutputError | None = None
        self.is_required = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.lost = self.lost or OutputError(error)
            if self.is_required:
                raise OutputError(error) from None
            return memoryview(data).nbytes


_output: _Output | None = None
"""Standard output, once it is set up."""


def open_closed() -> None:
    """Opens the descriptors 0, 1 and 2 on /dev/null where they are closed, since the next files would become them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free is this one


def set_up() -> None:
    """Does what this module is for; before the program opens anything."""
    global _output
    open_closed()
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (as long as the program)
    _output = _Output(1, "<stdout>")
    sys.stdout = _as_text(_output, sys.stdout)
    sys.stderr = _as_text(_Output(2, "<stderr>"), sys.stderr)


def lost_output() -> OutputError | None:
    """Why something of what was printed on standard output until now is lost; None: nothing is."""
    sys.stdout.flush()
    return _output.lost if _output is not None else None


@contextmanager
def required() -> Iterator[None]:
    """While entered, OutputError is raised where standard output cannot be written; at its end, all is written."""
    if _output is not None:
        _output.is_required = True
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    finally:
        if _output is not None:
            _output.is_required = False


def write_directly(text: str) -> None:
    """Writes a line to descriptor 2 past the streams, whose locks another thread may hold; it may be lost."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))


def _as_text(raw: _Output, before: Any) -> io.TextIOWrapper:
    """A stream for text in place of the one that Python has made, None where the descriptor was closed."""
    unbuffered = getattr(before, "write_through", False)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # type: ignore[arg-type]
        getattr(before, "encoding", None) or "utf-8",
        "backslashreplace",
        newline="\n",
        line_buffering=getattr(before, "line_buffering", False),
        write_through=unbuffered,
    )


def output_file() -> str | None:
    """The regular file that is this process's standard output; None where it is a terminal or a pipe."""
    with suppress(OSError):
        if stat.S_ISREG(os.fstat(1).st_mode):
            return os.readlink("/proc/self/fd/1")
    return None
