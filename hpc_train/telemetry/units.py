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


def binary_size(count: float) -> str:
    """Bytes, in the largest unit (powers of 1024, as job files give memory) of which there is one."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def short_size(count: float) -> str:
    """Bytes in two or three digits and the letter of their unit (powers of 1024), for a table: 1.2G, 680M, 0."""
    for unit, scale in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= 999.5 / 1024 * scale:
            return f"{_digits(count / scale)}{unit}"
    return f"{count:.0f}"


def short_secs(secs: float) -> str:
    """A duration of a step as short, from microseconds on: 12s, 4.2ms, 0s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if secs >= 0.9995 * scale:
            return f"{_digits(secs / scale)}{unit}"
    return "<1µs" if secs else "0s"


def _digits(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
