"""Arguments of the public API, refused where they are given, in the words that a job file's mistakes have. Pure."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from hpc_train.errors import UserError, did_you_mean

Target = TypeVar("Target", bound=Callable[..., Any])

MAX_PATH = 4096
"""Characters of a path; Linux takes as many bytes."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: object) -> str:
    """`value` in a message: on one line and shortened, whatever it is."""
    return " ".join(_SHORT.repr(value).split())


def not_allowed(where: str, argument: str, value: object, allowed: str) -> UserError:
    """The mistake that `argument` of `where`, a class or function, is `value`."""
    return UserError(f"{where}: {argument}: {shown(value)} is not allowed; allowed: {allowed}")


def check_type(where: str, argument: str, value: object, kinds: Any, allowed: str) -> None:
    """Refuses a value of another type; a bool counts as one where `kinds` is bool.

    Raises:
        UserError: It is none of `kinds`, which `allowed` says in words.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise not_allowed(where, argument, value, allowed)


def check_count(where: str, argument: str, value: object, least: int = 1, most: int | None = None) -> None:
    """UserError where `value` is no whole number from `least` on, up to `most`."""
    allowed = f"a whole number from {least:,} on" if most is None else f"a whole number from {least:,} to {most:,}"
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        raise not_allowed(where, argument, value, allowed)


def is_path(value: object) -> bool:
    """Whether the system can have such a path."""
    return isinstance(value, str | Path) and 0 < len(text := str(value)) <= MAX_PATH and "\0" not in text


def check_path(where: str, argument: str, value: object, allowed: str, optional: bool = False) -> None:
    """UserError where `value` is no path that the system can have; None where it is `optional`."""
    if not (is_path(value) or (optional and value is None)):
        raise not_allowed(where, argument, value, f"the path of {allowed}" + (", or None" if optional else ""))


def check_texts(where: str, argument: str, value: object) -> None:
    """UserError where `value` is no list of texts; one alone is none."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(text, str) for text in value):
        raise not_allowed(where, argument, value, "a list of texts")


def checked_arguments(target: Target, retired: Mapping[str, str] | None = None) -> Target:
    """Has a class or function refuse arguments that it does not have, lacks or gets twice, with a UserError.

    Args:
        retired: Arguments of Estimator that are none here, and what replaces each; None: the class's `retired`.
    """
    replaced: Mapping[str, str] = getattr(target, "retired", {}) if retired is None else retired
    if isinstance(target, type):
        signature, made = inspect.signature(target), target.__init__  # type: ignore[misc]

        @wraps(made)
        def begin(self: Any, /, *args: Any, **kwargs: Any) -> None:
            made(self, **_named(target.__qualname__, signature, replaced, args, kwargs))

        begin.__signature__ = inspect.signature(made)  # type: ignore[attr-defined]  # which Keras's layers look at
        target.__init__ = begin  # type: ignore[misc]
        return target
    signature = inspect.signature(target)

    @wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(**_named(target.__qualname__, signature, replaced, args, kwargs))

    return call  # type: ignore[return-value]


def _named(
    where: str,
    signature: inspect.Signature,
    retired: Mapping[str, str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments by name."""
    known = {name: p for name, p in signature.parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    takes_others = len(known) < len(signature.parameters)
    in_order = [p.name for p in known.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    given = dict(zip(in_order, args, strict=False))
    problems = []
    if len(args) > len(in_order):
        taken = f"only {' and '.join(in_order)} may be" if in_order else "none may be"
        first = shown(args[len(in_order)])
        rest = [name for name in known if name not in in_order]
        way = f"; give the others by name: {', '.join(rest)}" if rest else ""
        problems.append(f"{first} is given by position; {taken}{way}")
    for name in kwargs:
        if name in given:
            problems.append(f"{name}: given twice, by its position and by its name")
        elif name not in known and not takes_others:
            hint = f"{did_you_mean(name, known)}allowed: {', '.join(known)}"
            problems.append(f"{name}: {retired.get(name) or f'unknown argument; {hint}'}")
    given |= kwargs
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in given]
    problems += [f"{name}: missing, and it has no default" for name in missing]
    if problems:
        raise UserError("\n".join(f"{where}: {problem}" for problem in problems))
    return given
