"""Horizontal bars as inline SVG, readable at the width of a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import escape

WIDTH = 420
LABEL_WIDTH = 172
VALUE_WIDTH = 46
BAR_HEIGHT = 15
ROW_HEIGHT = 21
TOP = 30


@dataclass(frozen=True)
class Bar:
    """One bar; where `target` is given, a mark shows it. `value` None: "not measured"."""

    label: str
    value: float | None
    colour: str
    target: float | None = None
    gap_above: bool = False


def bars(title: str, entries: Sequence[Bar], top_value: float) -> str:
    """A chart of ratios: the scale goes from 0 to `top_value`, with lines at 0 and 1; values stand beside the bars."""
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    parts = []
    y = TOP
    for entry in entries:
        y += 9 if entry.gap_above else 0
        middle = y + BAR_HEIGHT / 2 + 4.2
        parts.append(f'<text x="{LABEL_WIDTH - 8}" y="{middle}" text-anchor="end">{escape(entry.label)}</text>')
        length = room * min(entry.value or 0, top_value) / top_value
        parts.append(
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{max(length, 1):.1f}" height="{BAR_HEIGHT}" rx="2" '
            f'fill="{entry.colour}"/>'
        )
        end = LABEL_WIDTH + length
        if entry.target is not None:
            x = LABEL_WIDTH + room * entry.target / top_value
            parts.append(f'<path d="M{x:.1f} {y - 3}V{y + BAR_HEIGHT + 3}" stroke="#a8321f" stroke-width="2"/>')
            end = max(end, x) if abs(end - x) < VALUE_WIDTH else end
        parts.append(f'<text x="{end + 6:.1f}" y="{middle}">{_words(entry.value)}</text>')
        y += ROW_HEIGHT
    lines = "".join(
        f'<path d="M{LABEL_WIDTH + room * at / top_value:.1f} {TOP - 4}V{y}" stroke="#cdd3da"/>' for at in (0, 1)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {y + 2}" role="img" aria-label="{escape(title)}" font-size="13" '
        f'font-family="system-ui, sans-serif" fill="#1c2430"><text x="0" y="16" font-weight="600" font-size="14">'
        f"{escape(title)}</text>{lines}{''.join(parts)}</svg>"
    )


def _words(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.2g}" if value < 1 else f"{value:.2f}"


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Colours and what they stand for."""
    return "".join(f'<span><i style="background:{colour}"></i>{escape(words)}</span>' for colour, words in entries)
