"""TensorFlow's start-up chatter kept off the terminal, its errors not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CHATTER = (
    r"^WARNING: All log messages before absl::InitializeLog|^[0-9: .-]*[IW](0000|[0-9]{4}) [0-9:.]+ .*\] |"
    r"^[0-9-]{10} [0-9:.]+: [IW] |^To enable the following instructions"
)
"""Lines that TensorFlow's native code writes when it starts, as an extended regular expression."""


@contextmanager
def without_chatter() -> Iterator[None]:
    """Drops the information and warning lines that native code writes to standard error meanwhile.

    TensorFlow 2.21 writes some whatever TF_CPP_MIN_LOG_LEVEL says. The filter is a process of its own, so that the
    last words of a crash still come through.
    """
    sys.stderr.flush()
    try:
        grep = subprocess.Popen(
            ["grep", "--line-buffered", "-avE", CHATTER], stdin=subprocess.PIPE, stdout=sys.stderr.fileno()
        )
    except OSError:  # no grep here, or a standard error that is no file: nothing to filter with
        yield
        return
    assert grep.stdin is not None
    terminal = os.dup(2)
    os.dup2(grep.stdin.fileno(), 2)
    grep.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
        grep.wait(timeout=10)
