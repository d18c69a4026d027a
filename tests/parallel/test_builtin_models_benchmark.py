"""builtin_models.py: the trees of a job are those of XGBoost by hand."""

from __future__ import annotations

import sys

import numpy as np

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from tables.data_sets import DATA_SETS
from tables.trees import by_hand, job


def test_a_job_grows_the_trees_of_xgboost_by_hand():
    train, test = next(DATA_SETS["breast_cancer"]().folds(5))
    np.testing.assert_allclose(job(train, test, 20, train.most_values[0]), by_hand(train, test, 20), rtol=1e-6)


def test_of_orders_both_learn_about_as_much():
    train, test = next(DATA_SETS["orders"]().first(2000).folds(2))
    found = [job(train, test, 20, train.most_values[-1]), by_hand(train, test, 20)]
    assert np.corrcoef(found)[0, 1] > 0.8
    for predicted in found:
        assert predicted[test.label == 1].mean() > predicted[test.label == 0].mean() + 0.03
