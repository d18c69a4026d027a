"""Fits latency and bandwidth to measured times, and a distribution to measured steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scale_model.costs import Link

QUARTILES_OF_NORMAL = 1.3489795003921634
"""The quartiles of a normal distribution lie so many standard deviations apart."""


@dataclass(frozen=True)
class Fitted:
    """Coefficients of a sum of terms.

    Attributes:
        values: None is negative. errors: Relative error of each point, |fitted - measured| / measured.
    """

    values: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """Median relative error."""
        return float(np.median(self.errors))


def fit_terms(terms: np.ndarray, secs: Sequence[float]) -> Fitted:
    """The non-negative coefficients that make `terms` [points, coefficients] times them come closest to `secs`.

    Least squares of the relative error, so that 4 bytes count as much as 256 MB.

    The problem is that of Lawson and Hanson, "Solving least squares problems", 1974, chapter 23.

    Raises:
        ValueError: There are no points, fewer of them than coefficients, or a time is not above 0.
    """
    times = np.asarray(secs, np.float64)
    terms = np.asarray(terms, np.float64)
    points, count = terms.shape
    if points != len(times) or points < count:
        raise ValueError(
            f"{len(times)} times, {points} rows of terms, {count} coefficients: give as many times or more"
        )
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("a measured time is not above 0")
    values = _non_negative(terms / times[:, None], np.ones(points))
    errors = np.abs(terms @ values / times - 1)
    return Fitted(tuple(values.tolist()), tuple(errors.tolist()))


def _non_negative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The non-negative least squares solution; all sets of columns are tried, as there are so few."""
    count = matrix.shape[1]
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    best, values = float(wanted @ wanted), np.zeros(count)
    for chosen in range(1, 1 << count):
        columns = [column for column in range(count) if chosen >> column & 1]
        part = matrix[:, columns] / scale[columns]
        found = np.linalg.lstsq(part, wanted, rcond=None)[0]
        left = part @ found - wanted
        if (found >= 0).all() and float(left @ left) < best:
            best, values = float(left @ left), np.zeros(count)
            values[columns] = found / scale[columns]
    return values


def fit_link(nbytes: Sequence[float], secs: Sequence[float]) -> Link:
    """Latency and bandwidth of messages of `nbytes` that took `secs`: alpha + nbytes * beta (Hockney 1994).

    Raises: As `fit_terms`.
    """
    terms = np.stack([np.ones(len(nbytes)), np.asarray(nbytes, np.float64)], axis=1)
    fitted = fit_terms(terms, secs)
    latency, per_byte = fitted.values
    return Link(latency, per_byte, fitted.error)


def fit_ring(
    ranks: Sequence[int], nbytes: Sequence[float], secs: Sequence[float], latency_secs: float | None = None
) -> Link:
    """The link that ring-allreduces went over: 2 (n - 1) (alpha + nbytes / n beta) + agreement log2(n).

    Args:
        latency_secs: alpha, where it is known from elsewhere, such as raw MPI's; None: fitted, and without agreement
            where all have the same number of ranks, in which the two cannot be told apart.

    Raises:
        ValueError: A number of ranks is below 2; or as `fit_terms`.
    """
    n, size, times = np.asarray(ranks, np.float64), np.asarray(nbytes, np.float64), np.asarray(secs, np.float64)
    if len(n) == 0 or n.min() < 2:
        raise ValueError("an allreduce has 2 ranks at least")
    hops, moved, doublings = 2 * (n - 1), 2 * (n - 1) / n * size, np.log2(n)
    if latency_secs is None:
        several = len(set(ranks)) > 1
        fitted = fit_terms(np.stack([hops, moved, doublings] if several else [hops, moved], axis=1), secs)
        return Link(fitted.values[0], fitted.values[1], fitted.error, fitted.values[2] if several else 0.0)
    if len(times) < 2 or not (np.isfinite(times) & (times > 0)).all():
        raise ValueError("give two points or more, with times above 0")
    terms, known = np.stack([moved, doublings], axis=1), hops * latency_secs
    values = _non_negative(terms / times[:, None], 1 - known / times)
    error = float(np.median(np.abs((terms @ values + known) / times - 1)))
    return Link(latency_secs, float(values[0]), error, float(values[1]))


@dataclass(frozen=True)
class StepTimes:
    """How steps of one rank vary: log-normal, as times that several causes multiply are.

    Attributes:
        median_secs: Of one step. sigma: Standard deviation of the logarithm; 0: all steps take the same.

    Raises:
        ValueError: A number is out of range.
    """

    median_secs: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.median_secs) and self.median_secs > 0):
            raise ValueError(f"StepTimes.median_secs is {self.median_secs}: give a number above 0")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ValueError(f"StepTimes.sigma is {self.sigma}: give a number from 0 on")

    @property
    def mean_secs(self) -> float:
        """Of many steps."""
        return self.median_secs * math.exp(self.sigma**2 / 2)

    def scaled(self, factor: float) -> StepTimes:
        """Steps that take `factor` times as long, and vary by as large a share."""
        return StepTimes(self.median_secs * factor, self.sigma)

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Times of `shape`, float64."""
        if self.sigma == 0:
            return np.full(shape, self.median_secs)
        drawn: np.ndarray = self.median_secs * np.exp(self.sigma * random.standard_normal(shape))
        return drawn
