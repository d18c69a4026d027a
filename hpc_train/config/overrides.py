"""`--set train.max_steps=500`: single keys of a job file, given on the command line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hpc_train.config.secrets import MASK
from hpc_train.config.yaml_loader import Document, Location, read_value
from hpc_train.errors import UserError

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def overridden(document: Document, settings: Sequence[str]) -> Document:
    """`document` with each of the settings, `KEY=VALUE`, laid over it; VALUE is YAML.

    Raises:
        UserError: One of them is not `KEY=VALUE`, or names a key below one that holds no keys.
    """
    value, lines, overrides = document.value, dict(document.lines), list(document.overrides)
    for setting in settings:
        key, equals, text = setting.partition("=")
        option = f"--set {key}"
        if not equals or not KEY.fullmatch(key):
            given = f"{key}={MASK}" if key.strip().startswith("resources") else setting  # which may hold secrets
            raise UserError(f"--set: {given!r} is not allowed; allowed: KEY=VALUE, as in train.max_steps=500")
        location: Location = tuple(key.split("."))
        new = read_value(text, option)
        value = _with(value, location, new, option)
        around = [location[:end] for end in range(1, len(location) + 1)]
        made = next((part for part in around if part not in lines), location)
        lines = {part: document.line(part) for part in [*around, *_within(new, location)]} | lines
        overrides.append((made, option))
    return replace(document, value=value, lines=lines, overrides=tuple(overrides))


def _within(value: Any, location: Location) -> Iterator[Location]:
    """The locations of all that is in `value`, which is at `location`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*location, key)
        yield from _within(item, (*location, key))


def _with(value: Any, location: Location, new: Any, option: str) -> Any:
    if not location:
        return new
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise UserError(f"{option}: the job file has a value there, and no keys below it; set the key above it")
    return {**value, location[0]: _with(value.get(location[0]), location[1:], new, option)}
