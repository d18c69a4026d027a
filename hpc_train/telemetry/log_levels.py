"""Which log records are wanted: a level for all, and levels of single loggers. Pure."""

from __future__ import annotations

import difflib
import logging

from hpc_train.errors import UserError

LEVELS_VARIABLE = "HPC_TRAIN_LOG"
ROOT = "hpc_train"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def parse_levels(text: str) -> dict[str, int]:
    """Levels by logger, from "LEVEL" and "LOGGER=LEVEL" separated by commas. Pure.

    Raises:
        UserError: A level is unknown, or a logger is none of this package.
    """
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        logger, named, level = part.rpartition("=")
        if level.lower() not in LEVELS:
            near = difflib.get_close_matches(level.lower(), LEVELS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"log level: {level!r} is not allowed; {hint}allowed: {', '.join(LEVELS)}")
        logger = logger.strip() if named else ROOT
        if logger != ROOT and not logger.startswith(f"{ROOT}."):
            raise UserError(f"log level: {logger!r} is no logger of this package; allowed: {ROOT}, {ROOT}.checkpoint …")
        found[logger] = LEVELS[level.lower()]
    return found
