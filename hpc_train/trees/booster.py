"""Boosters of XGBoost: their parameters, what they predict, and how they are read."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.table_schema import TableSchema, Task
from hpc_train.errors import UserError
from hpc_train.trees.columns import TreeColumns

MODEL_FILE = "model.ubj"
"""In exports."""
OBJECTIVES: Mapping[Task, str] = {
    "binary": "binary:logistic",
    "classes": "multi:softprob",
    "regression": "reg:squarederror",
    "counts": "count:poisson",
}
OUTPUTS: Mapping[Task, str] = {
    "binary": "probability",
    "classes": "probabilities",
    "regression": "prediction",
    "counts": "prediction",
}
"""What the output is called: as those of the other built-in models."""


def xgboost() -> Any:
    """The module.

    Raises:
        UserError: It is not installed.
    """
    try:
        return importlib.import_module("xgboost")
    except ImportError:
        raise UserError("builtin gbdt needs XGBoost, which is not installed; pip install 'hpc_train[gbdt]'") from None


def parameters(model: GBDTModel, schema: TableSchema, threads: int, seed: int) -> dict[str, Any]:
    """XGBoost's parameters.

    Rows and columns are not sampled, since XGBoost does not save the state of its random numbers
    (dmlc/xgboost#10324): so a job that is started again grows the same trees.
    """
    assert schema.task is not None, "checked with the job"
    found = {
        "objective": OBJECTIVES[schema.task],
        "tree_method": "hist",
        "learning_rate": model.learning_rate,
        "max_depth": model.max_depth,
        "min_child_weight": model.min_child_weight,
        "gamma": model.gamma,
        "alpha": model.l1,
        "lambda": model.l2,
        "max_bin": model.max_bin,
        "seed": seed,
        "nthread": threads,
    }
    if schema.task == "classes":
        found["num_class"] = units_of(schema)
    return found


def booster_of(content: bytes, threads: int) -> Any:
    """The booster in the bytes of a `.ubj` file, which must be whole: XGBoost does not look, and crashes."""
    return xgboost().Booster({"nthread": threads}, model_file=bytearray(content))


def content_of(booster: Any) -> bytes:
    """What `booster_of` makes the same booster of."""
    return bytes(booster.save_raw("ubj"))


def units_of(schema: TableSchema) -> int:
    """So many numbers a booster predicts of a row."""
    return len(schema.classes) if schema.task == "classes" else 1


def predicted(booster: Any, matrix: Any, units: int) -> np.ndarray:
    """What `booster` predicts of a DMatrix: float32 `[rows, units]`, as the other built-in models give it."""
    found: np.ndarray = booster.predict(matrix) if matrix.num_row() else np.zeros(0, np.float32)
    return found.reshape(matrix.num_row(), units)


def matrix_of(columns: TreeColumns, rows: np.ndarray, threads: int) -> Any:
    """A DMatrix of rows as `columns.matrix` gives them."""
    return xgboost().DMatrix(
        rows, feature_names=columns.names, feature_types=columns.kinds, enable_categorical=True, nthread=threads
    )
