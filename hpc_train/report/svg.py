"""Matplotlib's SVG as part of an HTML page: the page's colours and fonts, and ids that are unique on it. Pure."""

from __future__ import annotations

import re

COLOURS = 7
INK, SOFT, GRID, PAPER, ALARM = "#010101", "#010102", "#010103", "#010104", "#010105"
"""Drawn in these, and shown in the colours that the page gives those names."""
CURVES = tuple(f"#0102{i:02x}" for i in range(1, COLOURS + 1))

_VARIABLES = {INK: "ink", SOFT: "soft", GRID: "line", PAPER: "paper", ALARM: "bad"} | {
    colour: f"c{i}" for i, colour in enumerate(CURVES, start=1)
}


def for_page(drawn: str, prefix: str, title: str, description: str, css_class: str) -> str:
    """An `<svg>` element to be put into a page.

    Args:
        drawn: A whole SVG document as matplotlib writes it, with texts as texts.
        prefix: Of its ids; title, description: What it shows, as escaped text.
    """
    body = drawn[drawn.index("<svg") :]
    width, height = (float(number) for number in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', body)[0])
    body = body[body.index(">") + 1 : body.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", body, flags=re.DOTALL)
    body = _with_ids(body.replace("xlink:href", "href"), prefix)
    body = re.sub(f"({'|'.join(_VARIABLES)})(?![0-9a-f])", lambda m: f"var(--{_VARIABLES[m[0]]})", body)
    body = re.sub(r"\s*\n\s*", "\n", body).strip()
    return (
        f'<svg class="{css_class}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-labelledby="{prefix}-t {prefix}-d"><title id="{prefix}-t">{title}</title>'
        f'<desc id="{prefix}-d">{description}</desc>{body}</svg>'
    )


def _with_ids(body: str, prefix: str) -> str:
    """Ids that something refers to, with the prefix; no others."""
    needed = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in needed else "", body)
    return re.sub(r'(url\(#|href="#)([^)"]+)', rf"\g<1>{prefix}-\g<2>", body)
