"""Names of checkpoints, and which of them to keep. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY = re.compile(r"\.step-(\d{8,})\..+\.(tmp|old)")


def checkpoint_name(step: int) -> str:
    """The folder of the checkpoint of `step`."""
    return f"step-{step:08d}"


def temporary_name(step: int, owner: str) -> str:
    """The folder in which the checkpoint of `step` is written before it is committed."""
    return f".{checkpoint_name(step)}.{owner}.tmp"


def replaced_name(step: int, owner: str) -> str:
    """Where an older checkpoint of the same step is moved while a new one takes its place."""
    return f".{checkpoint_name(step)}.{owner}.old"


def step_of(name: str) -> int | None:
    """The step of the checkpoint folder `name`, or None where it is none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_temporary(name: str) -> bool:
    """Whether `name` is what a save that was cut short leaves behind."""
    return _TEMPORARY.fullmatch(name) is not None


def replaced_step(name: str) -> int | None:
    """The step of the checkpoint that was moved to `name`, or None where that is something else."""
    match = _TEMPORARY.fullmatch(name)
    return int(match[1]) if match and match[2] == "old" else None


def expired(steps: Iterable[int], keep: int) -> list[int]:
    """The steps whose checkpoints go when the newest `keep` stay (0: all stay), oldest first."""
    ordered = sorted(steps)
    return ordered[:-keep] if keep else []
