"""builtin_models.py: how near the built-in models come to scikit-learn's, on small data sets, and the made one."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from support.page import as_text
from support.records import Found
from tables.builtin import schema_of
from tables.comparison import KINDS, Settings, make_page, measure
from tables.data_sets import DATA_SETS
from tables.orders import MISSING, ROWS, orders

SETTINGS = Settings(folds=2, most_rows=2000, steps={"linear": 600, "dnn": 300})


@pytest.fixture(scope="module")
def found() -> Found:
    cases = [("diabetes", "linear"), ("wine", "linear"), ("wine", "dnn"), ("orders", "linear")]
    return Found([record for name, kind in cases for record in measure(name, kind, SETTINGS)])


def test_built_in_models_are_as_good_as_those_of_scikit_learn(found):
    for one in (one for one in found if one.config["name"] in ("diabetes", "wine")):
        assert one.config["ours"] > one.config["theirs"] - 2 * KINDS[one.config["kind"]].worse, one.case
    assert found.one(name="wine", kind="linear").config["ours"] > 0.99


def test_of_few_orders_with_texts_and_missing_values_both_learn_about_as_much(found):
    for name in ("orders", "orders, 10,000 values"):
        one = found.one(name=name)
        assert one.config["ours"] > 0.59, name
        assert one.config["ours"] == pytest.approx(one.config["theirs"], abs=0.02), name


def test_the_page_has_a_target_for_each_kind(found):
    report = make_page(found)
    assert [len(target.measured) for target in report.targets] == [4, 1, 0]
    assert "diabetes" in as_text(report, "2026-01-01")[0]


def test_orders_are_the_same_each_time_with_texts_missing_values_and_very_many_products():
    columns, label = orders()
    again, label_again = orders()
    np.testing.assert_equal([*again.values(), label_again], [*columns.values(), label])
    assert {len(column) for column in (*columns.values(), label)} == {ROWS}
    assert len(set(columns["product"]) - {""}) == 10_881
    for name, share in MISSING.items():
        missing = columns[name] == "" if columns[name].dtype == object else np.isnan(columns[name])
        assert missing.mean() == pytest.approx(share, abs=0.01), name


@pytest.mark.parametrize("most", [1000, 10_000])
def test_the_schema_of_orders_has_the_roles_that_they_were_made_for(most):
    rows, _ = next(DATA_SETS["orders"]().folds(5))
    assert most in rows.most_values
    schema = schema_of(rows, most)
    assert {name: column.role for name, column in schema.columns.items()} == {
        **dict.fromkeys(("price", "age", "items"), "numeric"),
        **dict.fromkeys(("city", "product"), "categorical"),
        "comment": "text",
        "y": "label",
    }
    known = set(rows.columns["product"]) - {""}
    assert len(schema.columns["product"].vocabulary) == min(most, len(known))
    assert len(schema.columns["comment"].vocabulary) == min(most, 3000)
