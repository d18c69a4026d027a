"""What texts of CSV files stand for."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from hpc_train.config.table_schema import ColumnSchema
from hpc_train.data.tables import texts
from hpc_train.data.tables.values import BadValueError, column_type, day_of, values_of


def array(*values: str | None) -> pa.Array:
    return pa.array(values, pa.large_string())


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        (("1", "-2", "30"), {"whole": 3}),
        (("0", "-0"), {"whole": 2}),
        (("007", "8"), {"padded": 1, "whole": 1}),
        (("+1", "2"), {"whole": 2}),
        (("1.5", "2", ".5", "1e5", "-3."), {"whole": 3, "number": 2}),
        (("1.0", "-2.", "0.00"), {"whole": 3}),
        (("1.0", "x"), {"whole": 1, "text": 1}),
        (("0.5", "00.5"), {"number": 2}),
        (("0x1F", "0X2A"), {"text": 2}),
        (("inf", "1"), {"whole": 1, "number": 1}),
        (("31.12.99", "1.2.3"), {"text": 2}),
        (("2024-01-02 10",), {"text": 1}),
        (("2024-01-02 10:00+99:99", "2024-01-02 10:00:75"), {"text": 2}),
        (("9007199254740993",), {"beyond": 1}),
        (("yes", "No", "TRUE", "f"), {"boolean": 4}),
        (("1", "x", "2.5"), {"whole": 1, "number": 1, "text": 1}),
        (("0x1F", "1_000", "1,5"), {"text": 3}),
        (("2024-02-29", "2024-01-31 23:59"), {"iso": 2}),
        (("2023-02-29",), {"text": 1}),
        (("31.1.2024", "30.2.2024"), {"%d.%m.%Y": 1, "text": 1}),
        (("1/2/2024", "2/1/2024"), {"%d/%m/%Y": 2, "%m/%d/%Y": 2}),
        (("1/2/2024", "13/1/2024"), {"%d/%m/%Y": 2, "%m/%d/%Y": 1}),
        ((), {}),
    ],
)
def test_kinds(values: tuple[str, ...], kinds: dict[str, int]) -> None:
    assert texts.kinds_of(array(*values)) == kinds


@pytest.mark.random
def test_dates_with_times_and_zones_are_those_of_datetime() -> None:
    chance = np.random.default_rng(5)
    written, seconds = [], []
    for _ in range(500):
        zone = datetime.timezone(datetime.timedelta(minutes=int(chance.integers(-700, 700))))
        moment = datetime.datetime(1900, 1, 1, tzinfo=zone) + datetime.timedelta(seconds=int(chance.integers(6e9)))
        separator = " T"[chance.integers(2)]
        written.append(moment.strftime(f"%Y-%m-%d{separator}%H:%M:%S%z"))
        seconds.append(moment.timestamp())
    found = texts.dates(array(*written), texts.ISO).cast(pa.int64()).to_pylist()
    assert found == seconds
    assert texts.dates(array("1970-01-02T00:00:01Z", "1970-01-01"), texts.ISO).cast(pa.int64()).to_pylist() == [
        86401,
        0,
    ]


def column(kind: str, **more: object) -> ColumnSchema:
    role = {"text": "categorical", "date": "date"}.get(kind, "numeric")
    return ColumnSchema(type=kind, role=role, **more)


def test_values() -> None:
    nan = float("nan")
    for kind, given, wanted in (
        ("integer", array("1", None, "-3"), [1, nan, -3]),
        ("number", array("1.5", "+2", None), [1.5, 2, nan]),
        ("boolean", array("Yes", "no", None, "1", "0"), [1, 0, nan, 1, 0]),
        ("date", array("1970-01-02", None), [86400, nan]),
        ("integer", pa.array([1, None], pa.int16()), [1, nan]),
        ("boolean", pa.array([True, None]), [1, nan]),
        ("number", pa.array([1.5, None], pa.float32()), [1.5, nan]),
        ("date", pa.array([datetime.date(1970, 1, 3), None]), [172800, nan]),
        ("date", pa.array([datetime.datetime(1970, 1, 1, 0, 0, 1, 500000)], pa.timestamp("ms")), [1.5]),
    ):
        found = values_of(given, column(kind))
        assert isinstance(found, np.ndarray) and found.dtype == np.float64
        np.testing.assert_array_equal(found, wanted)
    words = values_of(array("ä", None, ""), column("text"))
    assert not isinstance(words, np.ndarray)
    assert words.texts().tolist() == ["ä".encode(), b"", b""]
    day = ColumnSchema(type="date", role="date", format="%d.%m.%Y")
    assert np.asarray(values_of(array("2.1.1970"), day)).tolist() == [86400]


@pytest.mark.parametrize(
    ("kind", "given", "row", "text"),
    [
        ("integer", array("1", "2.5"), 1, "has 2.5, not a whole number"),
        ("integer", array("1", None, "x"), 2, "has 'x', not a whole number"),
        ("integer", array("1", "9007199254740994"), 1, "not a whole number"),
        ("number", array("1", "abc" * 40), 1, "…', not a number"),
        ("boolean", array("yes", "perhaps"), 1, "has 'perhaps', not true or false"),
        ("boolean", pa.array([0, 2]), 1, "has 2, not true or false"),
        ("date", array("2024-01-01", "2024-02-30"), 1, "has '2024-02-30', not a date written as 2026-01-31"),
        ("date", pa.array([1, 2]), 0, "has values of type int64, not a date"),
        ("number", pa.array([datetime.date(2024, 1, 1)]), 0, "not a number"),
    ],
)
def test_values_that_a_column_cannot_have(kind: str, given: pa.Array, row: int, text: str) -> None:
    with pytest.raises(BadValueError) as error:
        values_of(given, column(kind))
    assert error.value.row == row and text in error.value.text


def test_types_of_arrow() -> None:
    named = {
        pa.int8(): "integer",
        pa.float16(): "number",
        pa.decimal128(10, 2): "number",
        pa.bool_(): "boolean",
        pa.date32(): "date",
        pa.timestamp("ns", "Europe/Zurich"): "date",
        pa.string(): "text",
        pa.dictionary(pa.int8(), pa.string()): "text",
        pa.list_(pa.int8()): None,
        pa.binary(): None,
    }
    assert {kind: column_type(kind) for kind in named} == named


def test_days() -> None:
    assert day_of(0) == "1970-01-01" and day_of(-1) == "1969-12-31T23:59:59"
