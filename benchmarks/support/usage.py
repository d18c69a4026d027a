"""What every script does around its work: mistakes of the user, signals, the exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

EXIT_MISSED = 1
"""A target is missed, or something could not be measured, and --strict was given."""
EXIT_BAD_INPUT = 2
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class UsageError(Exception):
    """What the user asked for cannot be done; the message says what, where, and what to do."""


def run_main(main: Callable[[], int]) -> NoReturn:
    """Runs a script and leaves with its exit code.

    A UsageError is printed, and the code is 2. SIGTERM, SIGHUP and Ctrl-C unwind the program as an exception does, so
    that no ranks and no data are left behind; the code is 128 + the signal's number. A second signal changes nothing.
    """
    before = {number: signal.signal(number, _leave) for number in ENDING}
    try:
        code = main()
    except UsageError as error:
        for line in str(error).splitlines():
            print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
        code = EXIT_BAD_INPUT
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.exit(code)


def _leave(number: int, _: FrameType | None) -> None:
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)
