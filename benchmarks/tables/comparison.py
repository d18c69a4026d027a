"""Built-in models and scikit-learn's, on the data sets that scikit-learn carries: how well they predict other rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.page import Report, Section, Table, Target
from support.records import Found, Record, Sample, records_of

from hpc_train.config.builtin_model import model_from
from hpc_train.config.table_schema import TableSchema
from hpc_train.models.function import BuiltinModelFunction

BENCHMARK = "builtin_models"
NAMES = {"breast_cancer": "binary", "wine": "classes", "diabetes": "regression", "digits": "classes"}
"""Data sets, with the task of each."""
KINDS = {"linear": 0.002, "dnn": 0.01}
"""Built-in models, and how much worse than scikit-learn's each may be."""
BATCH, SEED = 64, 0
THEIRS = "scikit-learn"
SUMMARY = (
    "The area under the ROC curve (of several classes one against the rest, averaged), or R² of a number, of rows that "
    "a model was not trained on: the mean of five folds. Both standardise the numbers; all else is as it is by "
    "default.",
    "linear is compared with LogisticRegression and Ridge, which find the optimum; dnn with MLPClassifier and "
    "MLPRegressor, of one layer of 100, too, for 200 passes. MLPRegressor gets a standardised label: else "
    "its 200 passes end before it has learnt anything. Built-in models have 1,000 and 600 steps of 64 rows.",
)


@dataclass(frozen=True)
class Settings:
    """`steps`: how many each built-in model is trained for."""

    folds: int = 5
    steps: Mapping[str, int] = field(default_factory=lambda: {"linear": 1000, "dnn": 600})


def measure(name: str, kind: str, settings: Settings) -> Iterator[Record]:
    """A model on a data set, fold by fold, beside scikit-learn's."""
    task, found = NAMES[name], getattr(datasets, f"load_{name}")()
    rows, label = found.data, found.target
    split = KFold if task == "regression" else StratifiedKFold
    ours, theirs = [], []
    for train, test in split(settings.folds, shuffle=True, random_state=SEED).split(rows, label):
        for scores, predict in ((ours, _ours), (theirs, _theirs)):
            predicted = predict(kind, task, rows[train], label[train], rows[test], settings.steps[kind])
            scores.append(_score(task, label[test], predicted))
    config = {"name": name, "kind": kind, "ours": mean(ours), "theirs": mean(theirs)}
    yield from records_of(BENCHMARK, "of 1", [Sample(f"{kind} on {name}", ours, config=config)])


def schema_of(rows: np.ndarray, label: np.ndarray, task: str) -> TableSchema:
    """What `hpc-train schema` says of float64 `rows` `[rows, columns]`, all of whose columns are numbers."""
    columns: dict[str, Any] = {
        f"x{place}": {
            "type": "number",
            "role": "numeric",
            "statistics": {"count": len(rows), "mean": float(column.mean()), "std": float(column.std())},
        }
        for place, column in enumerate(rows.T)
    }
    if task == "regression":
        about = {"count": len(label), "mean": float(label.mean()), "std": float(label.std())}
        columns["y"] = {"type": "number", "role": "label", "statistics": about}
    else:
        classes, counts = np.unique(label, return_counts=True)
        about = {"count": len(label), "counts": counts.tolist()}
        columns["y"] = {"type": "integer", "role": "label", "vocabulary": classes.tolist(), "statistics": about}
    return TableSchema(task=task, rows=len(rows), columns=columns)


def _ours(kind: str, task: str, train: np.ndarray, label: np.ndarray, test: np.ndarray, steps: int) -> np.ndarray:
    keras.utils.set_random_seed(SEED)
    model = BuiltinModelFunction(model_from({"builtin": kind, "schema": schema_of(train, label, task)}))()
    batches = tf.data.Dataset.from_tensor_slices((_by_column(train), label)).shuffle(len(train), seed=SEED)
    batches = batches.repeat().batch(BATCH, drop_remainder=True)
    model.fit(batches, steps_per_epoch=steps, verbose=0)
    found: np.ndarray = np.asarray(model(_by_column(test)))
    return found[:, 0] if found.shape[1] == 1 else found


def _by_column(rows: np.ndarray) -> dict[str, tf.Tensor]:
    return {f"x{place}": tf.constant(column) for place, column in enumerate(rows.T)}


def _theirs(kind: str, task: str, train: np.ndarray, label: np.ndarray, test: np.ndarray, _: int) -> np.ndarray:
    if kind == "linear":
        model = Ridge() if task == "regression" else LogisticRegression(max_iter=10_000)
    else:
        regressor = TransformedTargetRegressor(MLPRegressor(random_state=SEED), transformer=StandardScaler())
        model = regressor if task == "regression" else MLPClassifier(random_state=SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        made = make_pipeline(StandardScaler(), model).fit(train, label)
    if task == "regression":
        predicted: np.ndarray = made.predict(test)
        return predicted
    found: np.ndarray = made.predict_proba(test)
    return found[:, 1] if task == "binary" else found


def _score(task: str, label: np.ndarray, predicted: np.ndarray) -> float:
    if task == "regression":
        return float(r2_score(label, predicted))
    return float(roc_auc_score(label, predicted, multi_class="ovr"))


def make_page(found: Found) -> Report:
    """The whole report."""
    targets = []
    for kind, worse in KINDS.items():
        cases = [(one.config["name"], one.config["ours"] - one.config["theirs"]) for one in found.where(kind=kind)]
        measured = [(name, f"{difference:+.4f}", difference >= -worse) for name, difference in cases]
        targets.append(Target(f"{kind}, less {THEIRS}", f"-{worse} at least", measured))
    rows = [
        [
            one.config["name"],
            one.config["kind"],
            f"{one.config['ours']:.4f}",
            f"{one.config['theirs']:.4f}",
            f"{one.spread[0]:.4f} to {one.spread[1]:.4f}",
        ]
        for one in found
    ]
    header = ("Data", "Model", "built-in", THEIRS, "lowest to highest fold")
    return Report(
        "Built-in models: against scikit-learn", SUMMARY, targets, [Section("Scores", (), (), [Table(header, rows, 2)])]
    )
