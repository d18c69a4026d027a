"""Numbers and dates as a float32 vector: standardised in float64, with what is missing filled in and pointed out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpc_train.config.table_schema import ColumnSchema
from hpc_train.errors import UserError
from hpc_train.lazy import keras

DAY_SECS = 86_400.0
YEAR_SECS = 365.2425 * DAY_SECS
"""The mean of the Gregorian calendar."""
THURSDAY = 3
"""1970-01-01 was one, with Monday as 0."""


def standardised(columns: Mapping[str, ColumnSchema], inputs: Mapping[str, Any]) -> list[Any]:
    """Numeric columns and dates as tensors `[rows, n]` float32, in columns' order: values, then where one was missing.

    A value less the mean of its column, by its standard deviation; 0 where that is 0. A missing one stands for the
    column's mean, median or 0 as its schema says; where it is to be refused, it stays NaN, and so does what the model
    predicts. Where training data had missing values that were filled in, a further number is 1 where one was.

    Args:
        inputs: float64 `[rows]`, NaN where missing; of dates seconds since 1970-01-01, UTC.

    Raises:
        UserError: A column has no statistics.
    """
    chosen = {name: column for name, column in columns.items() if column.role in ("numeric", "date")}
    if not chosen:
        return []
    _check_statistics(chosen)
    ops = keras.ops
    raw = ops.stack([inputs[name] for name in chosen], axis=-1)
    is_missing = ops.isnan(raw)
    mean, scale, fill = np.array([_standard(column) for column in chosen.values()]).T
    values = ops.cast(ops.multiply(ops.subtract(raw, mean), scale), "float32")
    found = [ops.where(is_missing, fill.astype(np.float32), values)]
    told = [place for place, column in enumerate(chosen.values()) if _has_missing(column)]
    if told:
        found.append(ops.cast(ops.take(is_missing, np.array(told), axis=-1), "float32"))
    return found


def calendar(columns: Mapping[str, ColumnSchema], inputs: Mapping[str, Any]) -> list[Any]:
    """Of dates their place in the day and the year as sine and cosine, and the day of the week as one of seven.

    One tensor float32 `[rows, 11 dates]`, or none; 0 where a date is missing. Days and years are those of UTC.

    Args:
        inputs: As of `standardised`.
    """
    dates = [inputs[name] for name, column in columns.items() if column.role == "date"]
    if not dates:
        return []
    ops = keras.ops
    raw = ops.stack(dates, axis=-1)
    is_missing = ops.isnan(raw)
    seconds = ops.where(is_missing, 0.0, raw)
    weekday = ops.mod(ops.add(ops.floor(ops.divide(seconds, DAY_SECS)), THURSDAY), 7)
    parts = [ops.one_hot(ops.cast(weekday, "int32"), 7, dtype="float32")]
    for period in (DAY_SECS, YEAR_SECS):
        angle = ops.multiply(ops.mod(ops.divide(seconds, period), 1.0), 2 * math.pi)
        waves = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)
        parts.append(ops.cast(waves, "float32"))
    is_there = ops.expand_dims(ops.cast(ops.logical_not(is_missing), "float32"), -1)
    found = ops.multiply(ops.concatenate(parts, axis=-1), is_there)
    return [ops.reshape(found, (-1, 11 * len(dates)))]


def _check_statistics(columns: Mapping[str, ColumnSchema]) -> None:
    for name, column in columns.items():
        summary = column.statistics
        if summary is None or summary.mean is None or summary.std is None:
            raise UserError(
                f"schema: column {name!r} has no mean and std among its `statistics`, by which a model standardises "
                "it; `hpc-train schema` counts them, or give them by hand"
            )


def _standard(column: ColumnSchema) -> tuple[float, float, float]:
    """What is subtracted from a value, what it is then multiplied by, and what a missing one is after both."""
    summary = column.statistics
    assert summary is not None
    mean, std = summary.mean or 0.0, summary.std or 0.0
    scale = 1 / std if std > 0 else 0.0
    if column.treatment == "refuse":
        return mean, scale, math.nan
    quantiles = summary.quantiles
    median = quantiles[len(quantiles) // 2] if len(quantiles) % 2 else mean
    stands = {"mean": mean, "median": median, "zero": 0.0}[column.treatment]
    return mean, scale, (stands - mean) * scale


def _has_missing(column: ColumnSchema) -> bool:
    return column.treatment != "refuse" and column.statistics is not None and column.statistics.missing > 0
