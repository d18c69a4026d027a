"""Amounts for people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """An amount and what of: 1 node, 2 nodes."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes, in the largest unit (powers of 1000) of which there is one."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"
