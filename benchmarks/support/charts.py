"""Horizontal bars as inline SVG, readable at the width of a phone, in the colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import escape

WIDTH = 420
LABEL_WIDTH = 172
"""At least; longer labels get more."""
VALUE_WIDTH = 46
BAR_HEIGHT = 15
ROW_HEIGHT = 21
TOP = 30
LETTER = 6.6

OUR_COLOUR, ALSO_OUR_COLOUR, OTHER_COLOUR, TARGET_COLOUR = "var(--c1)", "var(--c1-pale)", "var(--bar)", "var(--bad)"
"""Colours of bars, and of the mark at a number to reach."""


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
    left = max([LABEL_WIDTH, *(round(LETTER * len(entry.label)) + 16 for entry in entries)])
    room = WIDTH - left - VALUE_WIDTH
    parts = []
    y = TOP
    for entry in entries:
        y += 9 if entry.gap_above else 0
        middle = y + BAR_HEIGHT / 2 + 4.2
        parts.append(f'<text x="{left - 8}" y="{middle}" text-anchor="end">{escape(entry.label)}</text>')
        length = room * min(entry.value or 0, top_value) / top_value
        parts.append(
            f'<rect x="{left}" y="{y}" width="{max(length, 1):.1f}" height="{BAR_HEIGHT}" rx="2" '
            f'fill="{entry.colour}"/>'
        )
        end = left + length
        if entry.target is not None:
            x = left + room * entry.target / top_value
            parts.append(f'<path d="M{x:.1f} {y - 3}V{y + BAR_HEIGHT + 3}" stroke="{TARGET_COLOUR}" stroke-width="2"/>')
            end = max(end, x) if abs(end - x) < VALUE_WIDTH else end
        parts.append(f'<text x="{end + 6:.1f}" y="{middle}">{_words(entry.value)}</text>')
        y += ROW_HEIGHT
    lines = "".join(
        f'<path d="M{left + room * at / top_value:.1f} {TOP - 4}V{y}" stroke="var(--line)"/>' for at in (0, 1)
    )
    told = "; ".join(f"{entry.label}: {_words(entry.value)}" for entry in entries)
    heading = f'<text x="0" y="16" font-weight="600" font-size="14">{escape(title)}</text>'
    return _svg(f"{title}. {told}", y + 2, f"{heading}{lines}{''.join(parts)}")


def _svg(told: str, height: float, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(told)}" font-size="13" '
        f'font-family="system-ui, sans-serif" fill="var(--ink)">{content}</svg>'
    )


def _words(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.2g}" if value < 1 else f"{value:.2f}"


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Colours and what they stand for, as a drawing to stand below charts."""
    parts = []
    x, y = 0.0, 0
    for colour, words in entries:
        long = 20 + LETTER * len(words) + 14
        if x and x + long > WIDTH:
            x, y = 0.0, y + ROW_HEIGHT
        parts.append(f'<rect x="{x:.1f}" y="{y + 3}" width="13" height="13" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18:.1f}" y="{y + 14}">{escape(words)}</text>')
        x += long
    return _svg("Colours: " + ", ".join(words for _, words in entries), y + ROW_HEIGHT, "".join(parts))
