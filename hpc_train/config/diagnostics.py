"""Errors in a YAML file, reported to its author: where, what was given, what is allowed and the nearest name."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hpc_train.config.types import NAME_WORDS
from hpc_train.config.validation import said_of
from hpc_train.config.yaml_loader import Document, Location
from hpc_train.errors import UserError

Config = TypeVar("Config", bound=BaseModel)

MAX_MISTAKES = 100
"""Of one file, reported one by one."""
PATTERNS: dict[Location, str] = {
    **dict.fromkeys((("name",), ("eval", "name"), ("evals",)), NAME_WORDS),
    ("module",): "the dotted name of a module, as in trainer.task",
    ("resources", "tier"): "capital letters, digits and underscores, as in BASIC or STANDARD_1",
    **{
        ("resources", name): "one word of letters, digits and _ . , @ + : / -"
        for name in ("partition", "account", "qos", "modules")
    },
    ("resources", "constraint"): "features of nodes, as in skylake or gpu&ib",
}
"""What the patterns of a job file's texts allow, in words."""


@dataclass(frozen=True, order=True)
class Mistake:
    """One of a file's: the line it is to be sorted by, where it is in words, and what it is."""

    line: int
    where: str
    text: str


def mistake_at(document: Document, location: Location, text: str) -> Mistake:
    """A mistake at `location` of the document."""
    return Mistake(document.line(location), document.where(location), text)


def mistakes_of_yaml(document: Document) -> list[Mistake]:
    """What YAML allows but such a file does not."""
    return [Mistake(line, f"{document.path}:{line}", text) for line, text in document.mistakes]


def refuse(path: Path, mistakes: Iterable[Mistake]) -> typing.NoReturn:
    """Raises the UserError that lists all of them, each on a line of its own."""
    ordered = sorted(set(mistakes))
    lines = [f"{mistake.where}: {_shortened(mistake.text)}" for mistake in ordered[:MAX_MISTAKES]]
    more = len(ordered) - MAX_MISTAKES
    raise UserError("\n".join([*lines, f"{path}: and {more} more mistakes"] if more > 0 else lines))


def validated(document: Document, kind: type[Config], more: Callable[[Config], list[Mistake]] = lambda _: []) -> Config:
    """`document` as a `kind`; `more` finds what is wrong beyond its fields.

    Raises:
        UserError: With every mistake of the file.
    """
    problems = mistakes_of_yaml(document)
    try:
        found = kind.model_validate(document.value)
        problems += more(found)
    except ValidationError as error:
        problems += [explain(document, dict(e), kind, PATTERNS) for e in error.errors()]
    if problems:
        refuse(document.path, problems)
    return found


def explain(
    document: Document, error: Mapping[str, Any], kind: type[BaseModel], patterns: Mapping[Location, str]
) -> Mistake:
    """One error of pydantic's, which has read `document` as a `kind`.

    `patterns` say in words what the pattern of the text at a location allows.
    """
    location = _known_part(document, tuple(error["loc"]))
    return mistake_at(document, location, _describe(document, error, location, kind, patterns))


def _describe(
    document: Document,
    error: Mapping[str, Any],
    location: Location,
    kind: type[BaseModel],
    patterns: Mapping[Location, str],
) -> str:
    if error["type"] in ("missing", "missing_argument"):
        location = tuple(error["loc"])
    one_of_many = bool(location) and (isinstance(location[-1], int) or error["loc"][-1] == "[key]")
    allowed = patterns.get(location) or (patterns.get(location[:-1]) if one_of_many else None)
    dotted = ".".join(str(part) for part in location) or kind.model_config.get("title") or "the job file"
    return f"{dotted}: {said_of(error, location, kind, allowed)}"


def _shortened(text: str) -> str:
    """Without the middle of a value that fills pages."""
    return text if len(text) <= 1000 else f"{text[:200]} … {text[-600:]}"


def _known_part(document: Document, location: Location) -> Location:
    """The part of pydantic's location that names something in the file (it adds names of its own)."""
    end = len(location)
    while end and location[:end] not in document.lines:
        end -= 1
    return location[:end]
