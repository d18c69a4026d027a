"""scikit-learn's models on rows of a table, in pipelines that encode its columns."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tables.data_sets import DataSet

SEED = 0


def linear(train: DataSet, test: DataSet, _: int) -> np.ndarray:
    """What Ridge or LogisticRegression says of the rows of `test`, as tables.builtin.predicted returns it."""
    return _predicted(Ridge() if train.task == "regression" else LogisticRegression(max_iter=10_000), train, test)


def network(train: DataSet, test: DataSet, _: int) -> np.ndarray:
    """As `linear`, of MLPRegressor, of a standardised label, or MLPClassifier."""
    if train.task != "regression":
        return _predicted(MLPClassifier(random_state=SEED, early_stopping=train.is_overfitted), train, test)
    model = MLPRegressor(random_state=SEED, early_stopping=train.is_overfitted)
    return _predicted(TransformedTargetRegressor(model, transformer=StandardScaler()), train, test)


def _predicted(model: Any, train: DataSet, test: DataSet) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        made = make_pipeline(_encoder(train), model).fit(_matrix(train), train.label)
    if train.task == "regression":
        predicted: np.ndarray = made.predict(_matrix(test))
        return predicted
    found: np.ndarray = made.predict_proba(_matrix(test))
    return found[:, 1] if train.task == "binary" else found


def _encoder(rows: DataSet) -> ColumnTransformer:
    """Numbers are filled in and standardised; each value of a category, and each word, has a column of its own."""
    texts = [name for name, column in rows.columns.items() if column.dtype == object]
    places = {name: place for place, name in enumerate(rows.columns)}
    numeric = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    categorical = OneHotEncoder(handle_unknown="ignore")
    return ColumnTransformer(
        [
            ("numeric", numeric, [place for name, place in places.items() if name not in texts]),
            ("categorical", categorical, [places[name] for name in texts if name not in rows.of_words]),
            *((name, TfidfVectorizer(), places[name]) for name in rows.of_words),
        ]
    )


def _matrix(rows: DataSet) -> np.ndarray:
    """`[rows, columns]`: float64, or objects where there are texts."""
    return np.stack(list(rows.columns.values()), axis=1)
