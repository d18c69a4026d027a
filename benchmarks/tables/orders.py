"""Orders of a shop, made by a seed: numbers, a few cities, very many products, comments, and missing values."""

from __future__ import annotations

import numpy as np

ROWS, SEED = 25_000, 0
CITIES, PRODUCTS, WORDS = 30, 30_000, 3_000
LEAST_WORDS, MOST_WORDS = 3, 25
"""Of a comment."""
COMMON = 200
"""The k-th product, and word, is in proportion to 1 / (COMMON + k) (Zipf and Mandelbrot's law)."""
MISSING = {"price": 0.1, "age": 0.15, "city": 0.05, "product": 0.05, "comment": 0.2}
"""The share of rows in which a value is missing."""


def orders() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns `[ROWS]` by name, and whether each order was returned: int64 `[ROWS]`, 0 or 1. Pure.

    `price`, `age` and `items` are float64, NaN where missing; `city`, `product` and `comment` objects of str, "" where
    missing. The logit is a sum: the logarithm of the price, the age, age times items, a number of each city and of each
    product, of a comment the sum of its words' by the square root of their number, and 0.5 where the age is missing.
    Of all else that is missing it has 0.
    """
    chance = np.random.default_rng(SEED)
    price, age = chance.lognormal(3, 1, ROWS).round(2), chance.integers(18, 90, ROWS).astype(np.float64)
    items = 1.0 + chance.poisson(2, ROWS)
    city, product = chance.integers(0, CITIES, ROWS), chance.choice(PRODUCTS, ROWS, p=_frequencies(PRODUCTS))
    lengths = chance.integers(LEAST_WORDS, MOST_WORDS + 1, ROWS)
    words = chance.choice(WORDS, lengths.sum(), p=_frequencies(WORDS))
    starts = np.cumsum(lengths) - lengths
    is_missing = {name: chance.random(ROWS) < share for name, share in MISSING.items()}

    terms = {
        "price": 0.5 * (np.log(price) - 3),
        "age": 0.3 * (age - 54) / 20 + 0.4 * (items - 3) * (age - 54) / 20,
        "city": chance.normal(0, 0.5, CITIES)[city],
        "product": chance.normal(0, 1, PRODUCTS)[product],
        "comment": np.add.reduceat(chance.normal(0, 1, WORDS)[words], starts) / np.sqrt(lengths),
    }
    known = np.sum([np.where(is_missing[name], 0, term) for name, term in terms.items()], axis=0)
    logit = known + 0.5 * is_missing["age"] - 0.5
    label = (chance.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(np.int64)

    comments = np.split(_texts("word", words), starts[1:])
    columns = {
        "price": price,
        "age": age,
        "items": items,
        "city": _texts("city ", city),
        "product": _texts("product ", product),
        "comment": np.array([" ".join(comment) for comment in comments], object),
    }
    for name, rows in is_missing.items():
        columns[name][rows] = "" if columns[name].dtype == object else np.nan
    return columns, label


def _frequencies(count: int) -> np.ndarray:
    weights: np.ndarray = 1 / (COMMON + np.arange(count))
    return weights / weights.sum()


def _texts(what: str, numbers: np.ndarray) -> np.ndarray:
    return np.array([f"{what}{number}" for number in numbers], object)
