"""builtin_models.py: how near the built-in models come to scikit-learn's, on the smallest of its data sets."""

from __future__ import annotations

import sys

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from support.page import as_text
from support.records import Found
from tables.comparison import KINDS, Settings, make_page, measure

SETTINGS = Settings(folds=2, steps={"linear": 600, "dnn": 300})


@pytest.fixture(scope="module")
def found() -> Found:
    cases = [("diabetes", "linear"), ("wine", "linear"), ("wine", "dnn")]
    return Found([record for name, kind in cases for record in measure(name, kind, SETTINGS)])


def test_built_in_models_are_as_good_as_those_of_scikit_learn(found):
    for one in found:
        assert one.config["ours"] > one.config["theirs"] - 2 * KINDS[one.config["kind"]], one.case
    assert found.one(name="wine", kind="linear").config["ours"] > 0.99


def test_the_page_has_a_target_for_each_kind(found):
    report = make_page(found)
    assert [len(target.measured) for target in report.targets] == [2, 1]
    assert "diabetes" in as_text(report, "2026-01-01")[0]
