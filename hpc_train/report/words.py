"""Numbers, times and names as people read them. Pure."""

from __future__ import annotations

import math
import re
from datetime import datetime

UNKNOWN = "–"


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits; thousands are set apart."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−") if abs(value) < 1e15 else f"{value:.{digits - 1}e}"
    return _plain(f"{value:.{digits}g}")


def scientific(value: float) -> str:
    """A number as 9.75e−4."""
    return _plain(re.sub(r"\.?0*e", "e", f"{value:.2e}"))


def _plain(text: str) -> str:
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", text).replace("-", "−").replace("e+", "e")


def percent(share: float | None) -> str:
    """A share from 0 to 1."""
    if share is None:
        return UNKNOWN
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def duration(secs: float | None) -> str:
    """Seconds, in the two largest units of which there is one."""
    if secs is None or secs < 0:
        return UNKNOWN
    if secs < 9.95:
        return f"{secs:.1f} s"
    whole = round(secs)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (whole % 60, "s")]
    first = next((i for i, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def moment(time: float | None) -> str:
    """Seconds since 1970, as a local time with its distance from UTC."""
    try:
        return datetime.fromtimestamp(time).astimezone().strftime("%Y-%m-%d %H:%M:%S %z") if time else UNKNOWN
    except (OverflowError, OSError, ValueError):
        return UNKNOWN


def label(text: str, longest: int = 48) -> str:
    """A name that fits in one line, without characters that cannot be shown."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def named(kind: str) -> str:
    """An evaluation set as a line in a chart is called: "eval", or its name."""
    return kind.removeprefix("eval_") if kind != "eval" else kind


def count(amount: int, one: str) -> str:
    """An amount and what of: 1 step, 2,000 steps."""
    return f"{amount:,} {one}{'' if amount == 1 else 's'}"
