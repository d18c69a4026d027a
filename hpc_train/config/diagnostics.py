"""Errors in a YAML file, reported to its author: where, what was given, what is allowed and the nearest name."""

from __future__ import annotations

import re
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.dataclasses import is_pydantic_dataclass

from hpc_train.config.secrets import MASK
from hpc_train.config.yaml_loader import Document, Location
from hpc_train.errors import UserError, did_you_mean

MAX_MISTAKES = 100
"""Of one file, reported one by one."""


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


def unknown_key(name: str, allowed: Collection[str]) -> str:
    """What is said of a key that is not one of those `allowed`. Pure."""
    return f"unknown key; {did_you_mean(name, allowed)}allowed: {', '.join(allowed)}"


def explain(
    document: Document, error: Mapping[str, Any], kind: type[BaseModel], patterns: Mapping[Location, str]
) -> Mistake:
    """One error of pydantic's, which has read `document` as a `kind`.

    `patterns` say in words what the pattern of the text at a location allows.
    """
    location = _known_part(document, tuple(error["loc"]))
    return mistake_at(document, location, _describe(document, error, location, kind, patterns))


def _describe(
    document: Document, error: Mapping[str, Any], location: Location, kind: Any, patterns: Mapping[Location, str]
) -> str:
    dotted = ".".join(str(part) for part in location) or "the job file"
    what, given = error["type"], error["input"]
    if what in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{dotted}: {unknown_key(str(location[-1]), _fields_at(kind, location[:-1]))}"
    if what in ("missing", "missing_argument"):
        return f"{'.'.join(str(part) for part in error['loc'])}: missing, and it has no default"
    if what == "literal_error":
        expected = error["ctx"]["expected"]
        hint = did_you_mean(str(given), [e.strip("'") for e in expected.replace(" or ", ", ").split(", ")])
        return f"{dotted}: {given!r} is not allowed; allowed: {expected}{hint and '; ' + hint.rstrip()}"
    if what == "value_error":
        return f"{dotted}: {error['ctx']['error']}"
    if what == "string_pattern_mismatch":
        one_of_many = bool(location) and (isinstance(location[-1], int) or error["loc"][-1] == "[key]")
        of_all = patterns.get(location[:-1]) if one_of_many else None
        allowed_text = patterns.get(location) or of_all or error["ctx"]["pattern"]
        return f"{dotted}: {given!r} is not allowed; allowed: {allowed_text}"
    message = re.sub("(valid )?dictionary", "mapping", error["msg"].replace("Input should", "it should"))
    message = re.sub(r"mapping or (an )?instance of \w+", "mapping", message)
    shown = repr(given) if not isinstance(given, dict) else "a mapping"
    if location[:2] == ("resources", "environment"):
        shown = MASK
    return f"{dotted}: {shown} is not allowed; {message[0].lower()}{message[1:]}"


def _shortened(text: str) -> str:
    """Without the middle of a value that fills pages."""
    return text if len(text) <= 1000 else f"{text[:200]} … {text[-600:]}"


def _known_part(document: Document, location: Location) -> Location:
    """The part of pydantic's location that names something in the file (it adds names of its own)."""
    end = len(location)
    while end and location[:end] not in document.lines:
        end -= 1
    return location[:end]


def _fields_at(kind: Any, location: Location) -> list[str]:
    """Names allowed in the section at `location` of a `kind`."""
    for part in location:
        if typing.get_origin(kind) is dict:  # any key, of which the values are alike
            kind = typing.get_args(kind)[1]
            continue
        kind = _fields(kind).get(str(part))
        choices = [a for a in typing.get_args(kind) if a is not type(None)]
        kind = choices[0] if choices and typing.get_origin(kind) is not dict else kind
    return list(_fields(kind))


def _fields(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and is_pydantic_dataclass(kind):
        return typing.get_type_hints(kind)
    return {}
