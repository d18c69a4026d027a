"""What host_work.py measures: whose time is whose, the number to reach, and the report."""

from __future__ import annotations

import sys

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from host.clocks import Clocks
from host.page import BY_PART, FIT, NONE, ONE, make_page, records, targets
from support.page import as_text
from support.records import Found


def test_a_part_has_its_time_without_that_of_those_within() -> None:
    now = 0.0
    clocks = Clocks(lambda: now)

    def work(secs: float) -> None:
        nonlocal now
        now += secs

    inner = clocks.timed("inner", work)

    def both() -> str:
        work(1)
        inner(2)
        work(4)
        return "done"

    outer = clocks.timed("outer", both)
    work(100)
    clocks.restart()
    assert outer() == "done"
    inner(8)
    work(100)
    clocks.restart()
    assert clocks.last == {"outer": 5, "inner": 10}
    with pytest.raises(ZeroDivisionError):
        clocks.timed("outer", lambda: 1 / 0)()
    clocks.restart()
    assert clocks.last == {"outer": 0}, "one that fails is left, too"


def told(wall: float, **parts: float) -> dict:
    return {"wall_us": wall, "thread_us": wall / 2, "call_us": 250.0, "parts_us": parts}


def test_the_package_answers_for_what_is_not_tensorflows() -> None:
    parts = {"loop": 60.0, "feed": 30.0, "TensorFlow's call": 400.0, "the report's numbers": 10.0}
    runs = {FIT: [{"wall_us": 800.0, "thread_us": 700.0}], NONE: [told(390.0)], ONE: [told(450.0)]}
    found = Found(records({**runs, BY_PART: [told(500.0, **parts)]}))
    [target] = targets(found)
    measured = [("the sum of its parts", "90", True), (NONE, "140", True), (ONE, "200", False)]
    assert (list(target.measured), target.reached) == (measured, False)
    assert found.ratio(FIT, way=NONE) == 390 / 800
    page = as_text(make_page(found.records), "2026-01-01")[0]
    for words in ("µs a step", "TensorFlow's call", "| loop | 60", "Keras fit"):
        assert words in page
    [target] = targets(Found(records({NONE: [told(390.0)]})))
    assert [name for name, _, _ in target.measured] == [NONE]
