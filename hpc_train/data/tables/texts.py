"""What the texts of a CSV file stand for: which types they could have, and their values. Pure.

Arrays are Arrow's, of large_string, null where a value is missing, without blanks around.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

ISO = "iso"
"""How dates are written, by default: as ISO 8601 has it."""
FORMATS = (ISO, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y%m%d")
"""How dates may be written; those of digits alone are whole numbers, too."""
GUESSED = FORMATS[:-1]
TRUE, FALSE = ("true", "yes", "t", "y"), ("false", "no", "f", "n")
"""Texts that are truth values, in small letters."""
LARGEST = 2**53
"""From here on whole numbers are not all exact in float64, as which numbers are kept."""

WHOLE, PADDED, BEYOND, NUMBER, BOOLEAN, TEXT = "whole", "padded", "beyond", "number", "boolean", "text"
TRIED = 16
"""Texts that are tried before all of them."""
KINDS = (WHOLE, PADDED, BEYOND, NUMBER, BOOLEAN, *GUESSED, TEXT)
"""What a text can be: a whole number, one with a zero in front, one from LARGEST on, another number, a truth value, a
date of a format, or none of these."""

_WHOLE = r"^[+-]?\d+$"
_MOMENT = r"^\d{4}-\d\d-\d\d \d\d:\d\d(:[0-5]\d(\.\d+)?)?(Z|[+-](0\d|1[0-4]):?[0-5]\d)?$"
_NUMBER = r"(?i)^[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)$"


def trimmed(array: Any) -> Any:
    """Without blanks around each."""
    return compute.utf8_trim_whitespace(array)


def kinds_of(array: Any) -> dict[str, int]:
    """How many of the texts, of which none is missing, are of each of KINDS; a date may be of several.

    Of dates those formats are counted that the first of them has.
    """
    if not len(array):
        return {}
    if _is_plain(array):
        with suppress(pa.ArrowInvalid):
            limits = compute.min_max(_cast(array, pa.int64()))
            if -LARGEST < limits["min"].as_py() <= limits["max"].as_py() < LARGEST:
                return {WHOLE: len(array)}
        with suppress(pa.ArrowInvalid):
            numbers = np.asarray(_cast(array, pa.float64()))
            if np.abs(numbers).max() < LARGEST:
                return kinds_of_numbers(numbers)
    counted = compute.value_counts(array)
    texts, counts = counted.field(0), np.asarray(counted.field(1))
    is_whole = _matches(texts, _WHOLE)
    padded = is_whole & np.asarray(_padded(texts))
    beyond = is_whole & ~padded & (np.abs(_floats(texts, is_whole)) >= LARGEST)
    masks = {
        WHOLE: (is_whole & ~padded & ~beyond) | _is_whole_decimal(texts),
        PADDED: padded,
        BEYOND: beyond,
        NUMBER: ~is_whole & _matches(texts, _NUMBER) & ~_is_whole_decimal(texts),
        BOOLEAN: np.asarray(compute.is_in(compute.utf8_lower(texts), pa.array([*TRUE, *FALSE], pa.large_string()))),
    }
    others = ~np.logical_or.reduce(list(masks.values()))
    if others.any():
        first = texts.slice(int(np.argmax(others)), 1)
        likely = [each for each in GUESSED if dates(first, each).null_count == 0]
        masks |= {each: others & np.asarray(compute.is_valid(dates(texts, each))) for each in likely}
    masks[TEXT] = ~np.logical_or.reduce(list(masks.values()))
    found = {kind: int(counts[mask].sum()) for kind, mask in masks.items()}
    return {kind: count for kind, count in found.items() if count}


def kinds_of_numbers(found: np.ndarray) -> dict[str, int]:
    """The same of numbers, none of which is missing: 1.0 is a whole one, as it is written where others are missing."""
    whole = found == np.floor(found)
    beyond = whole & (np.abs(found) >= LARGEST) & np.isfinite(found)
    masks = {WHOLE: whole & ~beyond & np.isfinite(found), BEYOND: beyond}
    counts = {kind: int(mask.sum()) for kind, mask in masks.items()}
    counts[NUMBER] = len(found) - sum(counts.values())
    return {kind: count for kind, count in counts.items() if count}


def is_number(array: Any) -> np.ndarray:
    """Which of the texts are numbers; the missing ones are not asked about, and are."""
    return np.asarray(compute.fill_null(compute.match_substring_regex(array, _NUMBER), True))


def numbers(array: Any) -> np.ndarray:
    """The numbers that the texts are, float64, NaN where one is missing; all are numbers."""
    return _floats(array, np.ones(len(array), bool))


def booleans(array: Any) -> np.ndarray:
    """Truth values as 0 and 1, float64; NaN where one is missing, and 2 where a text is none."""
    small = compute.utf8_lower(array)
    found = np.full(len(array), 2.0)
    for texts, value in ((TRUE, 1.0), (FALSE, 0.0)):
        found[np.asarray(compute.is_in(small, pa.array(texts, pa.large_string())))] = value
    # Numbers stand for truth values, too, where a column is said to have these.
    for text, value in (("1", 1.0), ("0", 0.0)):
        found[np.asarray(compute.fill_null(compute.equal(small, text), False))] = value
    found[np.asarray(compute.is_null(array))] = np.nan
    return found


def dates(array: Any, form: str) -> Any:
    """Arrow timestamps in seconds, UTC: of the texts that are dates as `form` has it; null where one is not.

    A time without a zone is taken to be UTC.
    """
    if form != ISO:
        written = compute.if_else(_is_written(array, form), array, pa.scalar(None, pa.large_string()))
        return _days_there_are(written, form, compute.strptime(written, format=form, unit="s", error_is_null=True))
    if not compute.any(compute.equal(compute.binary_length(array), len("2026-01-31 23"))).as_py():
        with suppress(pa.ArrowInvalid):  # which knows no zones
            return _cast(array, pa.timestamp("s"))
    plain = compute.replace_substring_regex(array, r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", r"\1 \2")
    day = compute.match_substring_regex(plain, r"^\d{4}-\d\d-\d\d$")
    time = compute.match_substring_regex(plain, _MOMENT)
    found = compute.strptime(
        compute.if_else(day, plain, pa.scalar(None, pa.large_string())), format="%Y-%m-%d", unit="s", error_is_null=True
    )
    found = _days_there_are(plain, "%Y-%m-%d", found)
    if not compute.any(time).as_py():
        return found
    begun = compute.if_else(time, plain, pa.scalar(None, pa.large_string()))
    seconds = compute.replace_substring_regex(begun, r"^(.{16}).*$", r"\1")
    minutes = compute.strptime(seconds, format="%Y-%m-%d %H:%M", unit="s", error_is_null=True)
    minutes = _days_there_are(seconds, "%Y-%m-%d %H:%M", minutes)
    more = compute.replace_substring_regex(begun, r"^.{16}(?::(\d\d))?.*$", r"0\1").cast(pa.int64())
    zone = compute.replace_substring_regex(begun, r"^.{16}(?::\d\d(?:\.\d+)?)?(?:Z|([+-]\d\d):?(\d\d))?$", r"\1\2")
    east = compute.replace_substring_regex(zone, r"^\+?(-?)(\d\d)(\d\d)$", r"\1\2\3")
    shift = compute.if_else(compute.equal(east, ""), "0", east).cast(pa.int64())
    away = np.asarray(compute.fill_null(shift, 0))
    offset = np.sign(away) * (np.abs(away) // 100 * 3600 + np.abs(away) % 100 * 60)
    total = compute.add(compute.add(minutes.cast(pa.int64()), more), pa.array(-offset))
    return compute.coalesce(found, total.cast(pa.timestamp("s")))


def _is_written(array: Any, form: str) -> Any:
    """Which texts are written as `form` has it: strptime takes a year of any number of digits."""
    digits = {"%d": r"\d{1,2}", "%m": r"\d{1,2}", "%Y": r"\d{4}", "%y": r"\d{2}"}
    return compute.match_substring_regex(array, f"^{_pattern(form, digits)}$")


def _pattern(form: str, patterns: Mapping[str, str]) -> str:
    """A regular expression for dates, with `patterns` for what stands for digits."""
    parts = re.split(r"(%.)", form)
    return "".join(patterns.get(part, ".*") if part.startswith("%") else re.escape(part) for part in parts)


def _is_whole_decimal(array: Any) -> np.ndarray:
    """Which texts are whole numbers with a fraction of zeros."""
    return _matches(array, r"^[+-]?(?:0|[1-9]\d{0,14})\.0*$")


def _days_there_are(array: Any, form: str, found: Any) -> Any:
    """`found`, without what strptime makes of a day that its month does not have: one of the next month."""
    pattern = _pattern(form, {"%d": "(?:29|30|31)", "%m": r"\d{1,2}", "%Y": r"\d{4}"})
    late = compute.match_substring_regex(array, f"^{pattern}$")
    if not compute.any(late).as_py():
        return found
    wrong = compute.and_(late, compute.less_equal(compute.day(found), 3))
    return compute.if_else(compute.fill_null(wrong, False), pa.scalar(None, found.type), found)


def _cast(array: Any, kind: Any) -> Any:
    """The texts as values of a type; pa.ArrowInvalid where one is none."""
    array.slice(0, TRIED).cast(kind)  # Arrow words an error for each text that is none
    return array.cast(kind)


def _is_plain(array: Any) -> bool:
    """Whether no text begins with a plus, nor with a zero that digits or an x follow: Arrow takes these for numbers."""
    begins = [compute.starts_with(array, each) for each in ("0", "-", "+")]
    if compute.any(begins[2]).as_py():
        return False
    chosen = array.filter(compute.or_(begins[0], begins[1]))  # few, and an expression is slow
    return not len(chosen) or not compute.any(compute.match_substring_regex(chosen, r"^[+-]?0[\dxX]")).as_py()


def _padded(array: Any) -> Any:
    """Which texts begin with a zero and go on with digits: those of a ZIP code are no number."""
    return compute.match_substring_regex(array, r"^[+-]?0\d") if len(array) else pa.array([], pa.bool_())


def _matches(array: Any, pattern: str) -> np.ndarray:
    return np.asarray(compute.match_substring_regex(array, pattern))


def _floats(array: Any, chosen: np.ndarray) -> np.ndarray:
    """The chosen texts as float64; 0 for others, NaN where one is missing."""
    kept = compute.if_else(pa.array(chosen), array, pa.scalar("0", pa.large_string()))
    try:
        found = kept.cast(pa.float64())
    except pa.ArrowInvalid:  # a plus in front
        found = compute.utf8_ltrim(kept, "+").cast(pa.float64())
    return np.asarray(found.to_numpy(zero_copy_only=False))


PARSERS: Mapping[str, Callable[[Any], np.ndarray]] = {"boolean": booleans, "integer": numbers, "number": numbers}
