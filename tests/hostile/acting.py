"""What acts on a terminal, and texts that do."""

from __future__ import annotations

import re

ACTING = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Written once more, not taken from the package."""
COLOURS = re.compile(r"\x1b\[[0-9;:]*m")

TEXTS = [
    "\x1b]0;title\x07",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[1;1H",
    "\x1b[31mred",
    "\x1b[8m",
    "\x9b31m",
    "\x90q\x9c",
    "\x1bc",
    "line\nhpc-train: error: another",
    "over\rwritten",
    "\a\b\v\f",
    "\u202egnp.exe\u2066",
    "\u200f\u061c",
    "a\u2028b\u2029c\x85d",
    "\udcff\ud800",
    "\x7f",
    "[red]markup[/red] [link=http://evil.example]x[/link] :warning: [/]",
]


def acting(text: str, colours: bool = False) -> list[str]:
    """What of a command's output acts on a terminal, each with what is around it."""
    shown = COLOURS.sub("", text) if colours else text
    found = ACTING.finditer(shown.replace("\n", " ").replace("\t", " "))
    return [shown[max(0, each.start() - 30) : each.end() + 30] for each in found]
