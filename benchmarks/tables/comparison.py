"""Built-in models and those of other packages: how well they predict rows that they were not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import mean

import numpy as np
from sklearn.metrics import r2_score, roc_auc_score
from support.page import Report, Section, Table, Target
from support.records import Found, Record, Sample, records_of

from hpc_train.tabular.column_facts import MOST_DISTINCT
from hpc_train.tabular.inference import MOST_VALUES
from tables import builtin, scikit, trees
from tables.data_sets import DATA_SETS, DataSet

BENCHMARK = "builtin_models"


@dataclass(frozen=True)
class Kind:
    """A built-in model.

    Attributes:
        worse: By how much it may be worse than its rival.
        rival: What that is of.
        ours, theirs: What is predicted, by rows to train on, others, steps, and ours by most values of a vocabulary.
    """

    worse: float
    rival: str
    ours: Callable[[DataSet, DataSet, int, int], np.ndarray]
    theirs: Callable[[DataSet, DataSet, int], np.ndarray]


KINDS = {
    "linear": Kind(0.002, "scikit-learn", partial(builtin.predicted, "linear"), scikit.linear),
    "dnn": Kind(0.01, "scikit-learn", partial(builtin.predicted, "dnn"), scikit.network),
    "gbdt": Kind(0.005, "XGBoost", trees.job, trees.by_hand),
}
"""By the name in a job file."""
SUMMARY = (
    "The area under the ROC curve (of several classes one against the rest, averaged), or R² of a number, of rows that "
    "a model was not trained on: the mean of five folds. Both standardise the numbers; all else is as it is by "
    "default.",
    "linear is compared with LogisticRegression and Ridge, which find the optimum; dnn with MLPClassifier and "
    "MLPRegressor, of one layer of 100, too, for 200 passes. MLPRegressor gets a standardised label: else "
    "its 200 passes end before it has learnt anything. Built-in models have 1,000 and 600 steps of 64 rows. gbdt, "
    "which a job of one rank trains, is compared with XGBoost by hand, with the same parameters and 100 rounds.",
    "orders is made by a seed: 25,000 rows of two classes, with price, age, items, 30 cities, 10,881 products, of "
    "which 6,682 are in one row alone, and comments of 3 to 25 of 3,000 words; of all columns but items 5 to 20 % are "
    "missing. scikit-learn has SimpleImputer with indicators, OneHotEncoder of all values, TfidfVectorizer, and an "
    "MLPClassifier that stops early: 200 passes overfit; XGBoost by hand has all products as categories and counts of "
    "the 200 most frequent words. Built-in models know the 1,000 most frequent products and words, as by default; or "
    f"{MOST_DISTINCT:,} (`hpc-train schema --most-values`), which are nearly all.",
)


@dataclass(frozen=True)
class Settings:
    """`steps`: how many each built-in model is trained for. `most_rows`: of a data set; None: it has all."""

    folds: int = 5
    most_rows: int | None = None
    steps: Mapping[str, int] = field(default_factory=lambda: {"linear": 1000, "dnn": 600, "gbdt": 100})


def measure(name: str, kind: str, settings: Settings) -> Iterator[Record]:
    """A model on a data set, fold by fold, beside its rival: a record for each size of vocabulary."""
    data, steps, made = DATA_SETS[name]().first(settings.most_rows), settings.steps[kind], KINDS[kind]
    ours: dict[int, list[float]] = {most: [] for most in data.most_values}
    theirs = []
    for train, test in data.folds(settings.folds):
        theirs.append(_score(test, made.theirs(train, test, steps)))
        for most, scores in ours.items():
            scores.append(_score(test, made.ours(train, test, steps, most)))
    samples = []
    for most, scores in ours.items():
        case = name if most == MOST_VALUES else f"{name}, {most:,} values"
        config = {"name": case, "kind": kind, "ours": mean(scores), "theirs": mean(theirs)}
        samples.append(Sample(f"{kind} on {case}", scores, config=config))
    yield from records_of(BENCHMARK, "of 1", samples)


def _score(rows: DataSet, predicted: np.ndarray) -> float:
    if rows.task == "regression":
        return float(r2_score(rows.label, predicted))
    return float(roc_auc_score(rows.label, predicted, multi_class="ovr"))


def make_page(found: Found) -> Report:
    """The whole report."""
    targets = []
    for name, kind in KINDS.items():
        cases = [(one.config["name"], one.config["ours"] - one.config["theirs"]) for one in found.where(kind=name)]
        measured = [(case, f"{difference:+.4f}", difference >= -kind.worse) for case, difference in cases]
        targets.append(Target(f"{name}, less {kind.rival}", f"-{kind.worse} at least", measured))
    rows = [
        [
            one.config["name"],
            one.config["kind"],
            KINDS[one.config["kind"]].rival,
            f"{one.config['ours']:.4f}",
            f"{one.config['theirs']:.4f}",
            f"{one.spread[0]:.4f} to {one.spread[1]:.4f}",
        ]
        for one in found
    ]
    header = ("Data", "Model", "Rival", "built-in", "rival's", "lowest to highest fold")
    tables = [Table(header, rows, 3)]
    return Report("Built-in models: against others", SUMMARY, targets, [Section("Scores", (), (), tables)])
