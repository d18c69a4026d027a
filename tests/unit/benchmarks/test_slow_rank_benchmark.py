"""What slow_rank.py reports: the numbers to reach, by made-up runs."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from slowness.page import EQUAL, SLOWED, make_page, records, targets
from support.page import as_text
from support.records import Found


def run(**named: int) -> dict[str, Any]:
    return {"named": {name.removeprefix("rank"): record for name, record in named.items()}, "own_secs": [0.02, 0.026]}


@pytest.mark.parametrize(
    ("slowed", "equal", "reached"),
    [
        ([run(rank1=14), run(rank1=50)], [run(), run()], [True, True]),
        ([run(rank1=14), run()], [run(), run(rank0=20)], [False, False]),
        ([run(rank1=14), run(rank1=14, rank0=30)], [run()], [False, True]),
        ([run(rank0=14)], [run(rank1=20)], [False, False]),
    ],
)
def test_who_is_named_when(slowed: list[Any], equal: list[Any], reached: list[bool]) -> None:
    kept = list(records({SLOWED: slowed, EQUAL: equal}))
    assert [target.reached for target in targets(Found(kept))] == reached
    text = as_text(make_page(kept), "2026-01-01")[0]
    assert SLOWED in text and EQUAL in text and "1.3" in text


def test_nothing_measured_reaches_nothing() -> None:
    assert not any(target.reached for target in targets(Found([])))
