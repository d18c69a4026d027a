"""What staging.py makes of what its jobs tell, and which source it calls slow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from staged.jobs import PASSES, Settings, waits
from staged.page import SOURCE, STAGED, make_page, records, targets
from staged.source import slow_source
from support.page import as_text
from support.records import Found
from support.usage import MissingError


def test_a_pass_waits_as_the_rank_that_waits_most() -> None:
    inputs = [[0.9, 0.0], [0.0, 0.3], [0.4, 0.5], [0.4, 0.0], [0.1, 0.2], [0.1, 0.0]]
    times = [0.0, 2.0, 3.0, 6.0, 7.0, 8.0]
    steps = range(4, 8 * PASSES + 1, 4)
    own = [{"step": n, "time": t, "input": i} for n, t, i in zip(steps, times, inputs, strict=True)]
    assert waits(own, 8) == pytest.approx([0.3, 0.4, 0.1])


@pytest.mark.parametrize(("staged", "reached"), [(0.01, True), (0.011, False)])
def test_the_second_pass_is_what_counts(staged: float, reached: bool) -> None:
    told = {SOURCE: [[0.9, 0.31, 0.0], [0.9, 0.33, 0.0]], STAGED: [[0.9, staged, 0.5], [0.9, staged, 0.5]]}
    kept = list(records(told, {"ranks": 2}))
    assert [target.reached for target in targets(Found(kept))] == [reached, True]
    assert "31.00% to 33.00%" in as_text(make_page(kept), "today")[0]


def test_a_pass_is_as_many_records() -> None:
    assert Settings().steps * Settings().ranks * Settings().batch_rows * 128**2 <= Settings().megabytes * 1e6


@pytest.mark.parametrize(("user", "why"), [(1000, "need root"), (0, "mkfs.ext4")])
def test_what_cannot_be_had_is_told(user: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: user)
    with pytest.raises(MissingError, match=why), slow_source(tmp_path, 1 << 20, 1 << 20):
        raise AssertionError("there is none")
