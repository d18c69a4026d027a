"""ht.adapt leaves Keras's layers as their own adapt does, of the same rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import hpc_train as ht
from hpc_train.errors import UserError

L = keras.layers
TEXT = h5py.string_dtype()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Columns of three shards of different sizes, with a word that is not ASCII; `shards` is where they lie."""
    chance, rows = np.random.default_rng(0), 3000
    words = ["it", "is", "so", "größer,", "The", "end."]
    texts = [" ".join(chance.choice(words, chance.integers(0, 8))) for _ in range(rows)]
    columns: dict[str, np.ndarray] = {
        "x": chance.normal(3, 2, (rows, 4)).astype(np.float32),
        "image": chance.integers(0, 256, (rows, 5, 3)).astype(np.uint8),
        "amount": chance.exponential(size=rows),
        "code": chance.integers(-20, 20, rows),
        "word": chance.choice(np.array(words, object), rows, p=[0.4, 0.1, 0.1, 0.1, 0.1, 0.2]),
        "text": np.array(texts, object),
    }
    folder = tmp_path_factory.mktemp("shards")
    for number, (first, end) in enumerate([(0, 100), (100, 2900), (2900, rows)]):
        with h5py.File(folder / f"train-{number}.h5", "w") as file:
            for name, column in columns.items():
                file.create_dataset(name, data=column[first:end], dtype=TEXT if column.dtype == object else None)
            file["label"] = np.zeros(end - first)
    return {**columns, "shards": np.array(str(folder / "train-*.h5"))}


def source(data: dict[str, np.ndarray], *features: str) -> ht.HDF5Input:
    return ht.HDF5Input(str(data["shards"]), features=features or None)


def rows_of(data: dict[str, np.ndarray], name: str) -> tf.data.Dataset:
    column = data[name]
    return tf.data.Dataset.from_tensor_slices(column if column.ndim > 1 else column[:, None]).batch(500)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("x", lambda: L.Normalization()),
        ("x", lambda: L.Normalization(axis=None)),
        ("amount", lambda: L.Normalization()),
        ("image", lambda: L.Normalization()),
        ("image", lambda: L.Normalization(axis=(1, 2))),
        ("image", lambda: L.Normalization(axis=1)),
    ],
)
def test_normalization(data: dict[str, np.ndarray], name: str, make: Any) -> None:
    ours, theirs = ht.adapt(make(), source(data, name)), make()
    theirs.adapt(rows_of(data, name))
    for which in ("mean", "variance"):
        one, two = (np.asarray(getattr(layer, which)) for layer in (ours, theirs))
        assert one.shape == two.shape
        np.testing.assert_allclose(one, two, rtol=3e-6)
    axes = tuple(axis for axis in range(data[name].ndim) if axis not in (ours._keep_axis if name == "image" else ()))
    if name == "image":
        np.testing.assert_allclose(np.ravel(ours.mean), np.ravel(data[name].mean(axis=axes)), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("word", lambda: L.StringLookup()),
        ("word", lambda: L.StringLookup(max_tokens=4, mask_token="it", num_oov_indices=2)),
        ("word", lambda: L.StringLookup(output_mode="tf_idf")),
        ("code", lambda: L.IntegerLookup()),
        ("code", lambda: L.IntegerLookup(max_tokens=10, output_mode="one_hot")),
        ("text", lambda: L.TextVectorization()),
        ("text", lambda: L.TextVectorization(ngrams=2, max_tokens=30, output_mode="tf_idf")),
        ("text", lambda: L.TextVectorization(standardize=None, split="character", output_mode="count")),
        ("text", lambda: L.TextVectorization(split=None, output_mode="multi_hot")),
        ("word", lambda: L.TextVectorization(split=None, ngrams=2)),
        ("text", lambda: L.TextVectorization(standardize=lambda x: tf.strings.upper(x[:, 0]))),
    ],
)
def test_vocabularies(data: dict[str, np.ndarray], name: str, make: Any) -> None:
    ours, theirs = ht.adapt(make(), source(data, name)), make()
    theirs.adapt(rows_of(data, name))
    assert ours.get_vocabulary() == theirs.get_vocabulary()
    some = tf.constant(data[name][:200, None])
    np.testing.assert_allclose(np.asarray(ours(some)), np.asarray(theirs(some)), rtol=1e-6)


def test_discretization_is_within_its_epsilon(data: dict[str, np.ndarray]) -> None:
    layer = ht.adapt(L.Discretization(num_bins=8, epsilon=0.01), source(data, "amount"))
    assert len(layer.bin_boundaries) == 7
    ranks = np.searchsorted(np.sort(data["amount"]), layer.bin_boundaries) / len(data["amount"])
    np.testing.assert_allclose(ranks, np.arange(1, 8) / 8, atol=0.01)


def test_several_layers_and_a_feature_space_in_one_pass(
    data: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpc_train.data.hdf5.reader import Reader

    read, seen = Reader.read, []
    monkeypatch.setattr(Reader, "read", lambda self, rows: seen.extend(rows) or read(self, rows))

    def space() -> Any:
        of = keras.utils.FeatureSpace
        features = {
            "amount": of.float_normalized(),
            "code": of.integer_categorical(num_oov_indices=1),
            "word": of.string_categorical(),
            "x": of.float(),
        }
        return of(features, crosses=[of.cross(("code", "word"), 16)], output_mode="concat")

    names = ("amount", "code", "word")
    ours, theirs = ht.adapt(space(), source(data, *names, "x")), space()
    assert sorted(seen) == list(range(3000)), "each row once"
    theirs.adapt(tf.data.Dataset.from_tensor_slices({name: data[name] for name in (*names, "x")}).batch(500))
    some = {name: data[name][:50] for name in (*names, "x")}
    np.testing.assert_allclose(np.asarray(ours(some)), np.asarray(theirs(some)), rtol=1e-5)
    nothing = keras.utils.FeatureSpace({"amount": keras.utils.FeatureSpace.float_rescaled(2.0)}, output_mode="concat")
    assert ht.adapt(nothing, source(data, "amount")).built, "it has nothing to learn"
    scalars = L.Normalization(axis=None)
    scalars.build((None,))
    np.testing.assert_allclose(
        np.ravel(ht.adapt(scalars, source(data, "amount")).mean), data["amount"].mean(), rtol=1e-6
    )
    layers = {"word": L.StringLookup(), "x": L.Normalization()}
    assert ht.adapt(layers, source(data)) is layers, "others of the input's columns are not read"
    assert layers["word"].vocabulary_size() == 7


@pytest.mark.parametrize(
    ("layers", "features", "said"),
    [
        (lambda: L.Dense(3), ("x",), "the layer of 'x' is a Dense, which cannot be adapted; allowed: Normalization"),
        (lambda: L.Normalization(), (), "one layer is for one feature, but the input has amount, code"),
        (lambda: {"amont": L.Normalization()}, (), "has no dataset 'amont'; did you mean `amount`"),
        (lambda: {"amont": L.Normalization()}, ("amount",), "no feature 'amont'; did you mean `amount`? it has amount"),
        (lambda: {}, (), "adapt: layer: {} is not allowed; allowed: a layer, a dict of layers by feature"),
        (lambda: L.Normalization(), ("word",), "for numbers in rows of one length, but the column 'word' is texts"),
        (lambda: L.StringLookup(), ("code",), "for texts, but the column 'code' is int64"),
        (lambda: L.IntegerLookup(), ("amount",), "for whole numbers, but the column 'amount' is float64"),
        (lambda: L.Normalization(mean=0.0, variance=1.0), ("x",), "has been given its mean and variance; leave them"),
        (lambda: L.StringLookup(vocabulary=["a"]), ("word",), "has been given its vocabulary; leave it out"),
        (lambda: L.Discretization([1.0]), ("x",), "has been given its bin_boundaries; give num_bins"),
    ],
)
def test_what_does_not_go_together_is_refused(
    data: dict[str, np.ndarray], layers: Any, features: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        ht.adapt(layers(), source(data, *features))


def test_inputs_that_are_none_and_nan_are_refused(data: dict[str, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"adapt: source: 'x\.h5' is not allowed; allowed: ht\.HDF5Input"):
        ht.adapt(L.Normalization(), "x.h5")
    with pytest.raises(UserError, match="its map_fn is for batches of TensorFlow; leave it out"):
        ht.adapt(L.Normalization(), ht.HDF5Input("x.h5", map_fn=lambda x, y: (x, y)))
    both = L.Normalization()
    with pytest.raises(UserError, match="'x' and 'amount' have one layer; give each its own"):
        ht.adapt({"x": both, "amount": both}, source(data))
    built = L.Normalization()
    built.build((None, 4, 5))
    with pytest.raises(UserError, match=r"built for rows of shape \[4, 5\], but those of the column have \[4\]"):
        ht.adapt(built, source(data, "x"))
    built = L.Normalization()
    built.build((None, 7))
    with pytest.raises(UserError, match=r"built for rows of shape \[7\], but those of the column have \[4\]"):
        ht.adapt(built, source(data, "x"))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.array([1.0, np.nan])
    with pytest.raises(UserError, match="a column of which 1 values are NaN; leave them out, or put a number"):
        ht.adapt(L.Discretization(num_bins=2), ht.HDF5Input(str(tmp_path / "a.h5"), features="x"))
