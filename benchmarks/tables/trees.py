"""Boosted trees: those of a job file's `builtin: gbdt`, and XGBoost by hand with the same parameters and rounds."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xgboost
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import OrdinalEncoder
from support.launch import here

from hpc_train.config.yaml_loader import dump_yaml
from hpc_train.data.writing.convert import Options, convert
from hpc_train.inference.loaded_export import load_export
from tables.builtin import schema_of
from tables.data_sets import DataSet, is_missing

SEED = 0
LIMIT_SECS = 600.0
"""Of a job."""
COUNTED_WORDS = 200
"""Of a text."""
OBJECTIVES = {"binary": "binary:logistic", "classes": "multi:softprob", "regression": "reg:squarederror"}


def job(train: DataSet, test: DataSet, rounds: int, most_values: int) -> np.ndarray:
    """What the export of a job on one rank says of the rows of `test`, as tables.builtin.predicted returns it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        train.write(folder / "rows.parquet")
        (folder / "schema.yaml").write_text(schema_of(train, most_values).to_yaml())
        convert(folder / "rows", [str(folder / "rows.parquet")], Options(schema=folder / "schema.yaml"))
        shards = {"shards": "rows-*.h5"}
        asked: dict[str, Any] = {
            "name": "trees",
            "model": {"builtin": "gbdt", "schema": "schema.yaml"},
            "data": {"train": shards, "eval": shards},
            "train": {"max_steps": rounds},
            "eval": {"exporters": {"final": {}}},
        }
        (folder / "job.yaml").write_text(dump_yaml(asked))
        here()(1, ["-m", "hpc_train", "train", "job.yaml", "--job-dir", "run"], folder, LIMIT_SECS)
        export = load_export(folder / "run" / "export" / "final")
        (found,) = export.predict({name: _raw(test.columns[name]) for name in export.inputs}).values()
    return found[:, 0] if found.shape[1] == 1 else found


def by_hand(train: DataSet, test: DataSet, rounds: int) -> np.ndarray:
    """As `job`: XGBoost on categories of all values, and counts of a text's most frequent words."""
    parameters: dict[str, Any] = {
        "objective": OBJECTIVES[train.task],
        "tree_method": "hist",
        "learning_rate": 0.1,
        "max_depth": 6,
        "seed": SEED,
    }
    if train.task == "classes":
        parameters["num_class"] = len(np.unique(train.label))
    encoders = {name: _encoder(train, name) for name in train.columns}
    matrix = _matrix(train, encoders)
    matrix.set_label(train.label)
    found: np.ndarray = xgboost.train(parameters, matrix, rounds).predict(_matrix(test, encoders))
    return found


def _raw(column: np.ndarray) -> np.ndarray:
    """As shards have it."""
    if column.dtype != object:
        return column
    return np.array([text.encode() for text in column], object)


def _encoder(train: DataSet, name: str) -> Any:
    """Of a column of texts, fitted; None of numbers."""
    column = train.columns[name]
    if name in train.of_words:
        return CountVectorizer(max_features=COUNTED_WORDS).fit(column)
    if column.dtype != object:
        return None
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    return encoder.fit(column[~is_missing(column)][:, None])


def _matrix(rows: DataSet, encoders: dict[str, Any]) -> Any:
    """A missing value, and one that is not known, is one of XGBoost's own."""
    parts, kinds = [], []
    for name, column in rows.columns.items():
        encoder = encoders[name]
        part = column[:, None]
        if isinstance(encoder, CountVectorizer):
            part = encoder.transform(column).toarray()
        elif encoder is not None:
            part = encoder.transform(part)
        parts.append(part)
        kinds += ["c" if isinstance(encoder, OrdinalEncoder) else "q"] * part.shape[1]
    return xgboost.DMatrix(np.concatenate(parts, axis=1), feature_types=kinds, enable_categorical=True)
