"""What a model makes of raw rows, column by column."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.errors import UserError
from hpc_train.models.features import Features, embedding_width
from tests.unit.models.schemas import COLUMNS, batch, schema


@pytest.fixture(scope="module")
def features() -> Features:
    return Features.of(schema())


@pytest.fixture(scope="module")
def found(features: Features) -> dict[str, np.ndarray]:
    """Tensors of three rows, the same when a saved model makes them, called eagerly and in a graph."""
    words = features.words["comment"]
    made = {
        "numbers": keras.ops.concatenate(features.numbers, -1),
        **{name: category.index for name, category in features.categories.items()},
        "cross": features.crosses([["city", "code"]], 7)[0].index,
        "comment": words.index,
        "summed": words.summed(keras.layers.Embedding(words.size, 2, embeddings_initializer="ones")(words.index)),
    }
    model = keras.Model(features.inputs, made)
    found = model(batch())
    again = keras.Model.from_config(model.get_config())
    for other in (tf.function(model)(batch()), again(batch())):
        for name, value in found.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-6, err_msg=name)
    return {name: np.asarray(value) for name, value in found.items()}


def test_numbers_are_standardised_in_float64_and_missing_ones_stand_for_what_the_schema_says(found):
    age, constant, size = found["numbers"].T[:3]
    assert age.tolist() == [0.5, 4.0, -1.5], "the median is 8 above the mean; float32 would have no digits left"
    assert constant[:2].tolist() == [0, 0], "what is the same in all rows of training says nothing"
    assert math.isnan(constant[2]), "a missing value that is refused is not made up"
    assert size.tolist() == [0.5, -1, -0.5]


def test_where_values_were_missing_in_training_it_is_told(found):
    assert found["numbers"].T[4].tolist() == [0, 1, 0]
    assert found["numbers"].T[-1].tolist() == [0, 1, 0], "of the comment"


def test_dates_have_a_day_of_the_week_and_places_in_day_and_year(found):
    born, days, waves = found["numbers"].T[3], found["numbers"][:, 5:12], found["numbers"][:, 12:16]
    assert born.tolist() == [0, 0, 1]
    assert days.argmax(1)[[0, 2]].tolist() == [3, 1], "1970-01-01 was a Thursday, 2023-11-14 a Tuesday"
    assert days.sum(1).tolist() == [1, 0, 1]
    year = 2 * math.pi * (19_675.25 / 365.2425 % 1)
    np.testing.assert_allclose(waves[0], [0, 1, 0, 1], atol=1e-6)
    np.testing.assert_array_equal(waves[1], 0)
    np.testing.assert_allclose(waves[2], [1, 0, math.sin(year), math.cos(year)], atol=1e-5)


def test_categories_have_numbers_of_their_own_for_what_is_missing_and_unknown(features, found):
    assert found["city"].tolist() == [2, 0, 1]
    assert found["code"].tolist() == [4, 0, 1], "numbers are compared as float64"
    assert {name: c.size for name, c in features.categories.items()} == {"city": 5, "code": 5}


def test_crosses_of_equal_values_are_equal(features, found):
    assert len(found["cross"]) == 3 and all(0 <= each < 7 for each in found["cross"])
    with pytest.raises(UserError, match=r"crosses: 'born' is no categorical column of the schema; allowed: city, code"):
        features.crosses([["city", "born"]], 7)


def test_words_are_summed_by_the_root_of_their_number(found):
    assert found["comment"].tolist() == [[2, 2, 4], [0, 0, 0], [1, 0, 0]]
    np.testing.assert_allclose(found["summed"], [[3 / math.sqrt(3)] * 2, [0, 0], [1, 1]], rtol=1e-6)


def test_batches_whose_texts_have_no_words_have_an_empty_sum(features):
    words = features.words["comment"]
    vectors = keras.layers.Embedding(words.size, 2)(words.index)
    model = keras.Model(features.inputs["comment"], [words.summed(vectors), words.is_empty])
    summed, is_empty = model(tf.constant(["", " ", "!"]))
    assert np.asarray(summed).tolist() == [[0, 0]] * 3
    assert np.asarray(is_empty).tolist() == [[1]] * 3


@pytest.mark.parametrize("values", [1, 2, 10, 1000, 10**6])
def test_embeddings_grow_with_what_they_embed(values):
    assert embedding_width(values) == {1: 2, 2: 2, 10: 6, 1000: 50, 10**6: 50}[values]


@pytest.mark.parametrize(
    ("name", "lacks", "said"),
    [
        ("age in years", "statistics", "column 'age in years' has no mean and std among its `statistics`"),
        ("born", "statistics", "column 'born' has no mean and std"),
        ("city", "vocabulary", "column 'city' of role categorical has no `vocabulary`"),
        ("comment", "vocabulary", "column 'comment' of role text has no `vocabulary`"),
    ],
)
def test_what_a_schema_lacks_is_said(name, lacks, said):
    column = {key: value for key, value in COLUMNS[name].items() if key != lacks}
    made = Features.of(schema(columns={**COLUMNS, name: column}))
    with pytest.raises(UserError, match=said):
        _ = made.numbers, made.categories, made.words


def test_a_schema_without_features_has_none():
    with pytest.raises(UserError, match="no column has a role that a model takes"):
        Features.of(schema(columns={}))
