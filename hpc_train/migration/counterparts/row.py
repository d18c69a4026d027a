"""Counterpart: what replaces one name, as a row of a table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Verdict(Enum):
    """What is to be done with a call."""

    REPLACED = "write"
    KEPT = "keep"
    DROPPED = "leave out"
    MISSING = "no counterpart"


@dataclass(frozen=True)
class Counterpart:
    """What replaces one name.

    Attributes:
        name: The full name, as in `tf.estimator.RunConfig`. With `*` at its end, all that begin so and have no row.
        code: What is written instead: an expression in which the names of the signature stand for the arguments of the
            call, `rest` for all arguments that it does not name, and, of a method, `self` for the object. A name alone,
            of a row without a signature, is called with the same arguments.
        signature: The arguments in their order, each as `name` (needed), `name?` (may be missing: then it is missing in
            the code, too) or `name=VALUE` (what stands in the code where it is missing, and where it is None if VALUE
            is made of other arguments; without blanks).
        gone: Arguments that there are no more, and what takes their place.
        renamed: Arguments of `rest` that are called otherwise, by their old name.
        why: What else has to be known.
    """

    name: str
    verdict: Verdict
    code: str = ""
    signature: str = ""
    gone: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


def write(
    name: str,
    code: str,
    signature: str = "",
    why: str = "",
    gone: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Counterpart:
    """A row with a replacement."""
    return Counterpart(name, Verdict.REPLACED, code, signature, gone or {}, renamed or {}, why)


def keep(
    name: str, why: str, code: str = "", signature: str = "", gone: Mapping[str, str] | None = None
) -> Counterpart:
    """A row of what works as it is; `code`: what it is in model.py."""
    return Counterpart(name, Verdict.KEPT, code, signature, gone or {}, why=why)


def leave_out(name: str, why: str, code: str = "", signature: str = "") -> Counterpart:
    """A row of what happens by itself; `code`: what remains of an expression."""
    return Counterpart(name, Verdict.DROPPED, code, signature, why=why)


def missing(name: str, why: str) -> Counterpart:
    """A row of what has no counterpart."""
    return Counterpart(name, Verdict.MISSING, why=why)


class Tables:
    """Rows of several tables, found by name."""

    def __init__(self, *tables: Mapping[str, Counterpart]) -> None:
        self._rows = {name: row for each in tables for name, row in each.items()}
        self._beginnings = sorted((name[:-1] for name in self._rows if name.endswith("*")), key=len, reverse=True)

    def find(self, name: str) -> Counterpart | None:
        """The row of `name`, of what it is part of (`tf.estimator.ModeKeys.TRAIN`), or of what begins like it."""
        parts = name.split(".")
        for count in range(len(parts), 1, -1):
            if row := self._rows.get(".".join(parts[:count])):
                return row
        beginning = next((each for each in self._beginnings if name.startswith(each)), None)
        return self._rows[f"{beginning}*"] if beginning is not None else None


def table(rows: Iterable[Counterpart]) -> dict[str, Counterpart]:
    """The rows by name. ValueError: two have the same."""
    found: dict[str, Counterpart] = {}
    for row in rows:
        if row.name in found:
            raise ValueError(f"{row.name} has two rows")
        found[row.name] = row
    return found
