"""The values of a column as a schema has them: float64, or texts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyarrow import compute

from hpc_train.config.table_schema import ColumnSchema
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.sources.arrow import texts_of_arrow
from hpc_train.data.tables import texts

ARTICLES = {"integer": "a whole number below 2^53", "number": "a number", "boolean": "true or false", "date": "a date"}
LONGEST = 60
"""Characters of a value that a message shows."""


@dataclass
class BadValueError(Exception):
    """A value that a column cannot have.

    Attributes:
        row: Where in the array it is. text: What is wrong with it, as a sentence goes on: "has …".
        way: What else can be done about it than to mend it.
    """

    row: int
    text: str
    way: ClassVar[str] = "change the schema: the column's type, or what stands for a missing value"


def column_type(kind: Any) -> str | None:
    """The type, as schemas call it, of an Arrow column; None where tables have no such columns."""
    if pa.types.is_dictionary(kind):
        return column_type(kind.value_type)
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    is_text = pa.types.is_null, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return "text" if any(each(kind) for each in is_text) else None


def values_of(array: Any, column: ColumnSchema) -> Rows:
    """`array` of Arrow as what shards and models have of the column, a row each.

    Of texts these, "" where one is missing. Of integers, numbers, truth values (0 and 1) and dates (seconds since
    1970-01-01, UTC) float64, NaN where one is missing.

    Raises:
        BadValueError: One is not of the column's type.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    found = column_type(array.type)
    if column.type == "text":
        return texts_of_arrow(compute.fill_null(array.cast(pa.large_string()), ""))
    if found == "text":
        return _parsed(array.cast(pa.large_string()), column)
    if found == "date" and column.type == "date":
        seconds = array.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return _floats(seconds) / 1e6
    if found == "date" or column.type == "date":
        raise BadValueError(0, f"has values of type {array.type}, not {ARTICLES[column.type]}")
    return _checked(_floats(array), column)


def _floats(array: Any) -> np.ndarray:
    """Numbers of Arrow as float64, NaN where one is missing."""
    found: np.ndarray = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return found


def _parsed(array: Any, column: ColumnSchema) -> np.ndarray:
    """Texts, null where one is missing, as numbers."""
    if column.type == "boolean":
        found = texts.booleans(array)
        return _refusing(found, found == 2.0, array, column)
    if column.type == "date":
        stamps = texts.dates(array, column.format or texts.ISO)
        wrong = np.asarray(compute.and_(compute.is_null(stamps), compute.is_valid(array)))
        return _refusing(_floats(stamps.cast(pa.int64())), wrong, array, column)
    try:
        return _checked(texts.numbers(array), column)
    except pa.ArrowInvalid:
        return _refusing(np.zeros(0), ~texts.is_number(array), array, column)


def _checked(found: np.ndarray, column: ColumnSchema) -> np.ndarray:
    """Numbers that the column can have."""
    if column.type == "integer":
        with np.errstate(invalid="ignore"):
            wrong = (found != np.floor(found)) & ~np.isnan(found)
            beyond = np.abs(found) >= texts.LARGEST
        return _refusing(found, wrong | beyond, found, column)
    if column.type == "boolean":
        return _refusing(found, ~np.isin(found, (0.0, 1.0)) & ~np.isnan(found), found, column)
    return found


def _refusing(found: np.ndarray, wrong: np.ndarray, given: Any, column: ColumnSchema) -> np.ndarray:
    if wrong.any():
        row = int(np.argmax(wrong))
        value = given[row].as_py() if isinstance(given, pa.Array) else given[row]
        raise BadValueError(row, f"has {shown_value(value)}, not {_wanted(column)}")
    return found


def _wanted(column: ColumnSchema) -> str:
    written = f" written as {column.format or '2026-01-31'}" if column.type == "date" else ""
    return f"{ARTICLES[column.type]}{written}"


def shown_value(value: Any) -> str:
    """A value as a message has it."""
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST else f"{value[:LONGEST]}…")
    number = float(value)
    return f"{number:g}" if number == number // 1 and abs(number) < 1e6 else repr(number)


def day_of(seconds: float) -> str:
    """A date, in seconds since 1970-01-01, as ISO 8601 has it; without the time of day where that is midnight."""
    return str(np.datetime64(round(seconds), "s")).removesuffix("T00:00:00")
