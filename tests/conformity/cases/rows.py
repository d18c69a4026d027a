"""Rows of random numbers, labels, tokens and images that the cases train on."""

from __future__ import annotations

import numpy as np


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype("float32")


def shares(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers between 0 and 1: intensities of pixels, weights."""
    return rng.uniform(size=shape).astype("float32")


def classes(x: np.ndarray, count: int) -> np.ndarray:
    """A label a row that can be learned from its first `count` numbers."""
    return x.reshape(len(x), -1)[:, :count].argmax(1).astype("int32")


def one_hot(labels: np.ndarray, count: int) -> np.ndarray:
    return np.eye(count, dtype="float32")[labels]


def tokens(rng: np.random.Generator, rows: int, length: int, vocabulary: int) -> np.ndarray:
    """From 1 on: 0 is no token."""
    return rng.integers(1, vocabulary, (rows, length)).astype("int32")


def lengths(rng: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """How much of each row is no padding: 2 at least, all of it in some row in four."""
    found = rng.integers(2, length + 1, rows)
    found[::4] = length
    return found.astype("int32")


def padded(rng: np.random.Generator, rows: int, length: int, vocabulary: int) -> np.ndarray:
    """Tokens of sentences that end in padding."""
    found = tokens(rng, rows, length, vocabulary)
    found[np.arange(length) >= lengths(rng, rows, length)[:, None]] = 0
    return found


def shifted(sentences: np.ndarray) -> np.ndarray:
    """The next token of each."""
    return np.concatenate([sentences[:, 1:], np.zeros_like(sentences[:, :1])], 1)


def vectors(count: int = 8, labels: int = 3):
    """Data of rows of numbers with a class each."""

    def data(rng, rows):
        x = numbers(rng, rows, count)
        return x, classes(x, labels)

    return data


def regression(count: int = 8, outputs: int = 1):
    """Data of rows of numbers with what is a sum of them, bent."""

    def data(rng, rows):
        x = numbers(rng, rows, count)
        mixing = np.random.default_rng(1).normal(size=(count, outputs)) / count**0.5
        return x, np.tanh(x @ mixing).astype("float32")

    return data


def images(size: int = 12, channels: int = 1, labels: int = 3):
    def data(rng, rows):
        x = shares(rng, rows, size, size, channels)
        return x, classes(x, labels)

    return data


def sentences(length: int = 10, vocabulary: int = 20, labels: int = 2):
    """Data of padded sentences with a class each."""

    def data(rng, rows):
        x = padded(rng, rows, length, vocabulary)
        return x, (x[:, 0] % labels).astype("int32")

    return data


def series(length: int = 12, channels: int = 2):
    """Data of time series and the mean of each one's channels, a number a row."""

    def data(rng, rows):
        x = numbers(rng, rows, length, channels).cumsum(1) / length**0.5
        return x.astype("float32"), x.mean((1, 2), keepdims=True)[:, :, 0].astype("float32")

    return data
