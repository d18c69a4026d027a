"""How good a mean and its members are, against the same written plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.ensembles.scores import LEAST, Scores, row_scores


def probabilities(random: np.random.Generator, *shape: int) -> np.ndarray:
    given = random.random(shape) + 0.01
    return np.asarray(given / given.sum(-1, keepdims=True), np.float32)


@given(st.integers(1, 20), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_of_classes_the_loss_is_the_log_of_the_labels_probability(rows: int, classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    found, labels = probabilities(random, rows, classes), random.integers(0, classes, rows)
    scores = row_scores("classes", labels, found)
    for row, (loss, right) in enumerate(scores):
        assert math.isclose(loss, -math.log(found[row, labels[row]]), rel_tol=1e-6)
        assert right == (found[row].argmax() == labels[row])
    for same in (labels.reshape(-1, 1), np.eye(classes)[labels]):
        np.testing.assert_allclose(row_scores("classes", same, found), scores)


def test_a_certain_mistake_is_not_infinite() -> None:
    assert row_scores("classes", np.array([1]), np.array([[1.0, 0.0]]))[0, 0] == -math.log(LEAST)
    assert row_scores("binary", np.array([1]), np.array([[0.0]]))[0, 0] == -math.log(LEAST)


def test_of_two_classes_and_values() -> None:
    binary = row_scores("binary", np.array([1, 0]), np.array([[0.8], [0.6]]))
    np.testing.assert_allclose(binary, [[-math.log(0.8), 1], [-math.log(0.4), 0]])
    values = row_scores("values", np.array([1, 2]), np.array([[3.0], [2.5]]))
    np.testing.assert_allclose(values, [[4, 2], [0.25, 0.5]])


@pytest.mark.parametrize(
    ("kind", "labels"), [("classes", np.zeros(3, int)), ("values", np.zeros((2, 3))), ("binary", np.array(["a", "b"]))]
)
def test_labels_of_another_shape_are_refused(kind: str, labels: np.ndarray) -> None:
    with pytest.raises(UserError, match="are not those of outputs"):
        row_scores(kind, labels, np.ones((2, 2)) / 2)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.booleans(), st.integers(0, 2**32 - 1))
def test_batches_add_up_to_the_whole(batches: list[int], weighted: bool, seed: int) -> None:
    random, rows = np.random.default_rng(seed), sum(batches)
    members = probabilities(random, rows, 3, 4)
    mean, labels = members.mean(1), random.integers(0, 4, rows)
    weights = random.random(rows) + 0.1 if weighted else None
    scores, first = Scores("classes"), 0
    for count in batches:
        part = slice(first, first := first + count)
        scores.add(labels[part], mean[part], members[part], None if weights is None else weights[part])
    found = scores.results()
    assert (scores.rows, len(found)) == (rows, 4)
    for result, outputs in zip(found, [mean, *(members[:, k] for k in range(3))], strict=True):
        expected = np.average(row_scores("classes", labels, outputs), axis=0, weights=weights)
        np.testing.assert_allclose([result["loss"], result["accuracy"]], expected)


@given(st.integers(1, 20), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_the_mean_is_no_worse_than_the_members_on_average(rows: int, members: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    each = probabilities(random, rows, members, 3)
    scores = Scores("classes")
    scores.add(random.integers(0, 3, rows), each.mean(1), each, None)
    mean, *others = (result["loss"] for result in scores.results())
    assert mean <= np.mean(others) + 1e-6  # by Jensen's inequality
