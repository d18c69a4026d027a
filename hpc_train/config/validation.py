"""What pydantic finds wrong, in this package's words: for the Python API, and for files (diagnostics.py). Pure."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from functools import wraps
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import InitErrorDetails, PydanticCustomError

from hpc_train.arguments import checked_arguments, shown
from hpc_train.config.secrets import MASK
from hpc_train.config.types import FUNCTION_PATTERN, NAME_PATTERN, NAME_WORDS
from hpc_train.errors import UserError, did_you_mean

Kind = TypeVar("Kind", bound=type[Any])
Location = tuple[str | int, ...]

_SHOULD_BE = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "string_unicode"), "a text"),
    "string_too_short": "a text of {min_length} characters at least",
    "string_too_long": "a text of {max_length} characters at most",
    "path_type": "a path",
    **dict.fromkeys(("dict_type", "dataclass_type", "model_type", "model_attributes_type"), "a mapping"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    "too_short": "a list of {min_length} at least",
    "too_long": "a list of {max_length} at most",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "greater than or equal to {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "less than or equal to {le}",
}
"""By the type of pydantic's error."""
_PATTERNS = {NAME_PATTERN: NAME_WORDS, FUNCTION_PATTERN: "file.py:function or package.module:function"}


def specification(kind: Kind) -> Kind:
    """Has a class that pydantic validates refuse what it is made from with a UserError that has all mistakes."""
    made, name = kind.__init__, getattr(kind, "key", "") or kind.__qualname__

    @wraps(made)
    def begin(self: Any, /, **kwargs: Any) -> None:
        try:
            made(self, **kwargs)
        except ValidationError as error:
            lines = [f"{name}: {_located(dict(e), kind)}" for e in error.errors()]
            raise UserError("\n".join(dict.fromkeys(lines))) from None

    kind.__init__ = begin
    return checked_arguments(kind)


def _located(error: Mapping[str, Any], kind: type) -> str:
    location: Location = ()
    for part in error["loc"]:  # pydantic adds names of its own
        if isinstance(part, str) and not part.isidentifier():
            break
        location = (*location, part)
    text = said_of({**error, "input": Shortened(error["input"])}, location, kind)
    return f"{'.'.join(map(str, location))}: {text}" if location else text


class Shortened:
    """A value that a message shows shortened."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return shown(self.value)


def said_of(error: Mapping[str, Any], location: Location, kind: Any, allowed: str | None = None) -> str:
    """What is wrong with the value at `location` of a `kind`: what was given, and what it should be.

    Args:
        error: One of pydantic's.
        allowed: What the pattern of a text allows, in words.
    """
    what, given, about = error["type"], error["input"], error.get("ctx", {})
    if what in ("extra_forbidden", "unexpected_keyword_argument"):
        owner = _kind_at(kind, location[:-1])
        return unknown_key(str(location[-1]), _fields(owner), getattr(owner, "retired", {}))
    if what in ("missing", "missing_argument"):
        return "missing, and it has no default"
    if what == "literal_error":
        expected = about["expected"]
        hint = did_you_mean(str(given).strip("'"), [e.strip("'") for e in expected.replace(" or ", ", ").split(", ")])
        return f"{given!r} is not allowed; allowed: {expected}{hint and '; ' + hint.rstrip()}"
    if what == "value_error":
        return str(about["error"])
    value = "a mapping" if isinstance(given, dict) else repr(given)
    if location[:2] == ("resources", "environment"):
        value = MASK
    if what == "string_pattern_mismatch":
        return f"{value} is not allowed; allowed: {allowed or _PATTERNS.get(about['pattern'], about['pattern'])}"
    return f"{value} is not allowed; it should be {_SHOULD_BE.get(what, 'of another kind').format(**about)}"


def wrong_at(location: Location, given: Any, text: str) -> ValidationError:
    """For a validator: that `given`, at `location` below what it validates, is wrong, and `text` says how."""
    error = PydanticCustomError("value_error", "{error}", {"error": text})
    return ValidationError.from_exception_data("mistake", [InitErrorDetails(type=error, loc=location, input=given)])


def unknown_key(name: str, allowed: Collection[str], retired: Mapping[str, str] | None = None) -> str:
    """What is said of a key that is not one of those `allowed`; `retired` says what replaces those of Estimator."""
    if retired and name in retired:
        return retired[name]
    return f"unknown key; {did_you_mean(name, allowed)}allowed: {', '.join(allowed)}"


def _kind_at(kind: Any, location: Location) -> Any:
    """What the section at `location` of a `kind` is."""
    for part in location:
        if typing.get_origin(kind) is dict:  # any key, of which the values are alike
            kind = typing.get_args(kind)[1]
            continue
        kind = _fields(kind).get(str(part))
        choices = [a for a in typing.get_args(kind) if a is not type(None)]
        kind = choices[0] if choices and typing.get_origin(kind) is not dict else kind
    return kind


def _fields(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and is_pydantic_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields: Mapping[str, Any] = kind.__pydantic_fields__  # type: ignore[attr-defined]
        return {fields[name].alias or name: hint for name, hint in hints.items() if name in fields}
    return {}
