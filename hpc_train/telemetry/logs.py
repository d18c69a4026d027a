"""The log of a run: standard `logging`. The chief shows it on standard output, above the live bar.

Each module logs to the logger of its name, below "hpc_train". Which records are shown is up to LEVELS_VARIABLE, a list
such as "info,hpc_train.checkpoint=debug": a level for all, and levels of single loggers.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cache

from hpc_train.telemetry.log_levels import LEVELS_VARIABLE, ROOT, parse_levels
from hpc_train.telemetry.progress import make_console
from hpc_train.text import LINES, visible

log = logging.getLogger(ROOT)

console = cache(make_console)
"""This process's console on standard output."""


class LineFormatter(logging.Formatter):
    """A record as a line: information as it is, the rest with its level before it, and debugging with its logger."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.levelno != logging.INFO:
            name = f"{record.name}: " if record.levelno < logging.INFO else ""
            text = f"{record.levelname.lower()}: {name}{text}"
        return visible(f"{self._prefix}{text}", LINES)


class ConsoleHandler(logging.Handler):
    """Prints records on `console()`."""

    def emit(self, record: logging.LogRecord) -> None:
        console().print(self.format(record), highlight=False, markup=False, emoji=False)


def set_up_logging(is_chief: bool, rank: int) -> None:
    """Shows what this process logs: the chief on standard output, other ranks their warnings on standard error. Local.

    A program that has given the logger "hpc_train" a handler of its own keeps it, and sees the records there.

    Raises:
        UserError: LEVELS_VARIABLE cannot be understood.
    """
    _set_levels()
    if not log.handlers:
        handler: logging.Handler = ConsoleHandler()
        if not is_chief:
            handler = logging.StreamHandler(sys.stderr)
            handler.addFilter(lambda record: record.levelno >= logging.WARNING or hasattr(record, "any_rank"))
        handler.setFormatter(LineFormatter("" if is_chief else f"hpc-train: rank {rank}: "))
        log.addHandler(handler)
        log.propagate = False


def log_to_stderr() -> None:
    """Shows what a command logs that trains nothing, on standard error: standard output is for its answer. Local."""
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LineFormatter(prefix="hpc-train: "))
        log.addHandler(handler)
        log.propagate = False
    _set_levels()


_levels: dict[str, int] = {}
"""What this module has set."""


def _set_levels() -> None:
    """Levels as LEVELS_VARIABLE has them now; those that a program has set itself stay where it names none."""
    wanted = parse_levels(os.environ.get(LEVELS_VARIABLE, ""))
    for name, level in _levels.items():
        if logging.getLogger(name).level == level:
            logging.getLogger(name).setLevel(logging.NOTSET)
    _levels.clear()
    if log.level == logging.NOTSET:
        wanted.setdefault(ROOT, logging.INFO)
    for name, level in wanted.items():
        _levels[name] = level
        logging.getLogger(name).setLevel(level)
