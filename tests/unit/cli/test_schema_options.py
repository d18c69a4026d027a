"""Options of hpc-train schema that say which rows are to evaluate with."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_train.cli.schema import _split
from hpc_train.config.row_split import RowSplit
from hpc_train.errors import UserError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None, None, None), None),
        ((0.1, 3, None, None), RowSplit(fraction=0.1, seed=3)),
        ((None, 3, "who", None), RowSplit(fraction=0.2, seed=3, by="who")),
        ((None, None, None, "sold"), RowSplit(fraction=0.2, time="sold")),
    ],
)
def test_they_say_which_rows(given: Any, expected: RowSplit | None) -> None:
    assert _split(*given) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((1.0, None, None, None), "--split 1: allowed"),
        ((None, None, "who", "sold"), "--split-by and --time: give one of them"),
        ((None, 3, None, "sold"), "--seed: with --time"),
        ((None, 3, None, None), "--seed: without --split or --split-by no row is left out; give one of them"),
    ],
)
def test_what_would_be_passed_over_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        _split(*given)
    assert str(refused.value).startswith(said)
