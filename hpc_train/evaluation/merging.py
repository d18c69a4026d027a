"""Whether the metrics of a model can be computed by ranks apart and added up: tried out with two batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_train.lazy import keras, tf
from hpc_train.model.batch import fixed_rows
from hpc_train.model.layer_states import from_zero
from hpc_train.model.own_steps import has_own_test_step, logs_of


@dataclass(frozen=True)
class Merging:
    """What `merging` has found.

    Attributes:
        names: Of what an evaluation gives, where test_step is the model's own; None: of the model's metrics.
        obstacle: Why one rank has to evaluate all rows; empty: ranks can evaluate a part each.
        last_batch: Whether what test_step returns for the last batch is the result, as Keras has it.
    """

    names: tuple[str, ...] | None = None
    obstacle: str = ""
    last_batch: bool = False


def merging(model: keras.Model, dataset: tf.data.Dataset, ranks: int) -> Merging:
    """How an evaluation on `dataset` can be shared by `ranks`. Local.

    Tried out where test_step is the user's own, or metrics are and there are several ranks.

    Metrics can be added up where the state after two batches is the sum of the states after each, and where the state
    is all that the result comes from.

    Raises:
        Whatever a metric or test_step raises. UserError: test_step returns no numbers by name.
    """
    own_step, own = has_own_test_step(model), _own_metrics(model)
    if not own_step and (not own or ranks == 1):
        return Merging()
    batches = _two_batches(model, dataset)
    with from_zero(model):
        model.reset_metrics()
        zero, nothing = _states(model), flat_results(model)
        logs: Any = [model.test_step(batch) for batch in batches][-1]
        both, result = _states(model), flat_results(model)
        each = []
        for batch in batches:
            model.reset_metrics()
            model.test_step(batch)
            each.append(_states(model))
        model.reset_metrics()
        merged = _sum(zero, each)
        tells = both is None or all(np.isfinite(state).all() for state in both)
        same = merged is not None and both is not None and all(map(_near, both, merged))
        same = same and _alike(flat_results(model), nothing)  # else something is kept that is no variable
        if same and merged is not None:
            for variable, value in zip(model.metrics_variables, merged, strict=True):
                variable.assign(value.astype(np.asarray(variable.numpy()).dtype))
            same = _alike(flat_results(model), result)
        model.reset_metrics()
    names = None
    if own_step:
        found = {name: float(value) for name, value in logs_of(logs, f"test_step of {type(model).__name__}").items()}
        names = tuple(found)
        strange = [name for name, value in found.items() if name not in result or not _near(value, result[name])]
        if strange:
            why = (
                f"test_step returns {', '.join(map(repr, strange))}, which is no metric of the model: its value for "
                "the last batch counts, as in Keras; keep it in a keras.metrics.Mean of that name for one of all rows"
            )
            return Merging(names, why, last_batch=True)
    if len(batches) < 2:
        return Merging(names, "there is too little data to see whether metrics of one's own can be added up")
    keeps = f"what {', '.join(own) or 'test_step'} keeps"
    if not tells:
        return Merging(names, f"{keeps} of two batches is not finite, and does not show whether ranks can add it up")
    return Merging(names, "" if same else f"{keeps} cannot be added up over ranks")


def flat_results(model: keras.Model) -> dict[str, float]:
    """The model's metrics by name, as Keras flattens them; of a vector each element, as name_0, name_1 and so on."""
    built = [metric for metric in model.metrics if getattr(metric, "built", True)]
    return dict(_scalars({metric.name: metric.result() for metric in built}))


def _scalars(results: dict[str, Any]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in results.items():
        if isinstance(value, dict):
            found += _scalars(value)
            continue
        array = np.asarray(value)
        if array.ndim == 0:
            found.append((name, float(array)))
        else:
            indexed = np.ndenumerate(array)
            found += [(f"{name}_{'_'.join(map(str, index))}", float(item)) for index, item in indexed]
    return found


def _own_metrics(model: keras.Model) -> list[str]:
    """Names of the metrics that are not Keras's own classes."""
    every = [one for metric in model.metrics for one in getattr(metric, "metrics", [metric])]
    return [metric.name for metric in every if not type(metric).__module__.startswith("keras.")]


def _two_batches(model: keras.Model, dataset: tf.data.Dataset) -> list[Any]:
    batches = list(dataset.take(2))
    rows = int(tf.nest.flatten(batches[0])[0].shape[0]) if batches else 0
    if len(batches) != 1 or rows < 2 or fixed_rows(model) is not None:
        return batches
    half = rows // 2
    return [tf.nest.map_structure(lambda t, a=a, b=b: t[a:b], batches[0]) for a, b in ((0, half), (half, rows))]


def _states(model: keras.Model) -> list[np.ndarray] | None:
    """None where one of them is no number."""
    values = [np.asarray(variable.numpy()) for variable in model.metrics_variables]
    return None if any(value.dtype.kind in "OSU" for value in values) else [v.astype(np.float64) for v in values]


def _sum(zero: list[np.ndarray] | None, each: list[list[np.ndarray] | None]) -> list[np.ndarray] | None:
    if zero is None:
        return None
    total = list(zero)
    for states in each:
        if states is None or len(states) != len(zero):
            return None
        total = [sum_ + state - first for sum_, state, first in zip(total, states, zero, strict=True)]
    return total


def _near(one: Any, other: Any) -> bool:
    return bool(np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=1e-5, atol=1e-7, equal_nan=True))


def _alike(one: dict[str, float], other: dict[str, float]) -> bool:
    return one.keys() == other.keys() and all(_near(one[name], other[name]) for name in one)
