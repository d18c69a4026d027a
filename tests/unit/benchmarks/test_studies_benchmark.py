"""studies.py: what is training, how busy slots were, what whole batches take; asking in small, and the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from support.page import as_text
from support.records import Found
from trials.asking import TUNES, ask
from trials.jobs import training_secs
from trials.page import (
    ALL,
    BATCHES,
    BEST_MEMBER,
    FRESH,
    KEPT,
    OPTUNA,
    TRAINING,
    asking_records,
    busy,
    ensemble_records,
    in_any_pairs,
    in_batches,
    make_page,
    search_records,
    short_records,
    span,
    unequal_records,
)


def test_training_is_what_steps_take_without_what_comes_before_them() -> None:
    train = [{"kind": "train", "step": step, "time": 100 + 0.1 * step} for step in (20, 40, 60)]
    others = [{"kind": "start", "step": 0, "time": 1.0}, {"kind": "eval", "step": 60, "time": 500.0}]
    assert training_secs([others[0], *train, others[1]], 60) == pytest.approx(6.0)
    assert training_secs(others, 60) == 0


def test_slots_are_busy_while_trials_run_in_one_run_or_several() -> None:
    periods = [[(10.0, 14.0)], [(10.0, 11.0), (12.0, 13.0)]]
    assert span(periods) == 4
    assert busy(periods, 2) == 0.75


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=20))
def test_whole_batches_take_no_less_than_the_slots_need(secs: list[float]) -> None:
    assert in_batches(secs, 1) == pytest.approx(sum(secs))
    assert sum(secs) / 2 <= in_batches(secs, 2) * (1 + 1e-9)
    assert sum(secs) / 2 <= in_any_pairs(secs) * (1 + 1e-9)
    assert in_batches(secs, len(secs)) == max(secs)


@pytest.mark.parametrize("way", ["random", "grid", "random, ASHA"])
def test_a_study_of_made_up_trials_is_asked(tmp_path: Path, way: str) -> None:
    found = ask(way, 20, 3, tmp_path)
    assert len(found["secs"]) == 3
    assert min(found["secs"]) > 0
    assert not any(tmp_path.iterdir())


def test_the_page_has_a_target_for_each_number() -> None:
    assert [target.reached for target in make_page([]).targets] == [False] * 8
    asked = {way: {"secs": [0.01, 0.02, 0.03], "open_secs": 0.5} for way in TUNES}
    kept = {"secs": 12.0, "training": [5.0] * 4, "periods": [[(0.0, 5.0)], [(0.0, 5.0)], [(5.0, 10.0)], [(5.0, 10.0)]]}
    short = {KEPT: [kept], FRESH: [{**kept, "secs": 24.0}], OPTUNA: [{"secs": 36.0, "training": [5.0] * 4}]}
    unequal = {"periods": [[(0.0, 4.0)], [(0.0, 1.0)], [(1.0, 5.0)], [(4.0, 5.0)]]}
    ways = {"ASHA": {"best": 0.9, "steps": 30, "secs": 1.0}, ALL: {"best": 0.9, "steps": 100, "secs": 3.0}}
    one = {"secs": 9.0, "difference": 1e-8, "mean": {"loss": 0.5, "accuracy": 0.9}}
    members = {0: {**one, "each": [{"loss": 0.6, "accuracy": 0.8}, {"loss": 0.8, "accuracy": 0.7}]}}
    kinds = [asking_records(1000, asked), short_records(2, short), unequal_records(2, [unequal])]
    kinds.append(ensemble_records("digits", 2, members))
    found = Found(
        [one for records in [*kinds, search_records("digits", "accuracy", {0: ways, 1: ways})] for one in records]
    )
    assert found.ratio(TRAINING, way=KEPT) == 1.2
    assert found.ratio(OPTUNA, way=KEPT) == pytest.approx(1 / 3)
    assert found.ratio(BATCHES) == 5 / 8
    assert found.ratio(BEST_MEMBER) == pytest.approx(5 / 6)
    report = make_page(found.records)
    assert all(target.reached for target in report.targets)
    assert "| tpe | 1,000 | 20 |" in as_text(report, "2026-01-01")[0].replace("1000", "1,000")
