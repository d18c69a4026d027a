"""Feature columns make of a batch what those of TensorFlow make of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_train as ht
from hpc_train.resilience.cause import cause_of

OURS: Any = ht.feature_column
Make = Callable[[Any], Any]
"""A column, made with the functions of `ht.feature_column`, or of tf.feature_column."""

ROWS = 40
_RANDOM = np.random.default_rng(0)
FEATURES: dict[str, np.ndarray] = {
    "age": np.round(_RANDOM.normal(size=ROWS), 1).astype(np.float32),
    "size": _RANDOM.normal(size=(ROWS, 3)).astype(np.float32),
    "city": _RANDOM.choice(["Aachen", "Übach", "映画", "", "none of these"], ROWS),
    "tags": _RANDOM.choice(["a", "b", "c", "d", ""], (ROWS, 4)),
    "day": _RANDOM.integers(-1, 9, ROWS),
    "numbers": _RANDOM.integers(-1, 1000, (ROWS, 3)),
}
TEXTS = ["Aachen", "映画", "Chur"]


def tensors() -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.constant(a.tolist() if a.dtype.kind == "U" else a) for name, a in FEATURES.items()}


def counted(shape: Any) -> np.ndarray:
    """1, 2, 3, …"""
    return 1 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def of_tensorflow(make: Make, linear: bool = False) -> np.ndarray:
    """What TensorFlow's own column makes of the rows: the input of a network, or logits; its table is `counted`."""
    import tensorflow as tf

    old = tf.compat.v1
    with tf.Graph().as_default():
        layer = old.feature_column.linear_model if linear else old.feature_column.input_layer
        found = layer(tensors(), [make(tf.feature_column)])
        with old.Session() as session:
            session.run([old.global_variables_initializer(), old.tables_initializer()])
            for variable in old.global_variables():
                if "bias" not in variable.name:
                    variable.load(counted(variable.shape.as_list()), session)
            return np.asarray(session.run(found))


def of_ours(make: Make, linear: bool = False) -> np.ndarray:
    """The same of ours."""
    from hpc_train.canned.arguments import Deep, Wide
    from hpc_train.canned.towers import DeepTower, LinearTower
    from hpc_train.canned.transformation import Batch, lookups_of

    column = make(OURS)
    batch = Batch(tensors(), lookups_of([column]))
    tower: Any = LinearTower(Wide((column,), {}), 1) if linear else DeepTower(Deep((column,), (1,), {}), 1)
    tower.build()
    tables = tower._weights if linear else tower._embeddings
    for table in tables.values():
        table.assign(counted(table.shape))
    inputs = batch.inputs([column], linear)
    return np.asarray(tower(inputs) if linear else tower._dense(column, inputs[column.name]))


def city(column: Any) -> Any:
    return column.categorical_column_with_hash_bucket("city", 7)


def tags(column: Any) -> Any:
    return column.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"])


def ages(column: Any) -> Any:
    return column.bucketized_column(column.numeric_column("age"), [-1.0, 0.0, 0.5])


def day(column: Any) -> Any:
    return column.categorical_column_with_identity("day", 7, default_value=2)


CATEGORICAL: dict[str, Make] = {
    "hashed texts": city,
    "hashed texts, several a row": lambda c: c.categorical_column_with_hash_bucket("tags", 11),
    "hashed numbers": lambda c: c.categorical_column_with_hash_bucket("numbers", 11, _integers(c)),
    "a vocabulary": tags,
    "a vocabulary with others by hashes": lambda c: c.categorical_column_with_vocabulary_list(
        "city", TEXTS, num_oov_buckets=3
    ),
    "a vocabulary with a default": lambda c: c.categorical_column_with_vocabulary_list("city", TEXTS, default_value=1),
    "a vocabulary of numbers": lambda c: c.categorical_column_with_vocabulary_list("day", [3, 1, 8], num_oov_buckets=2),
    "identity": day,
    "buckets": ages,
    "buckets of several numbers": lambda c: c.bucketized_column(c.numeric_column("size", shape=(3,)), [-0.5, 0.5]),
    "a cross of texts": lambda c: c.crossed_column(["city", "tags"], 13),
    "a cross of texts and numbers, with a key": lambda c: c.crossed_column(["city", "numbers"], 13, hash_key=7),
    "a cross of columns": lambda c: c.crossed_column([ages(c), tags(c), day(c), "city"], 101),
    "a cross of a cross": lambda c: c.crossed_column([c.crossed_column([ages(c), "city"], 5), tags(c)], 101),
}


def _integers(column: Any) -> Any:
    import tensorflow as tf

    return "int64" if column is OURS else tf.int64


@pytest.mark.parametrize("name", CATEGORICAL)
def test_numbers_of_values_are_those_of_tensorflow(name: str) -> None:
    import tensorflow as tf

    make = CATEGORICAL[name]
    for linear, column in ((True, make), (False, lambda c: c.indicator_column(make(c)))):
        ours, theirs = of_ours(column, linear), of_tensorflow(column, linear)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert len(np.unique(ours, axis=0)) > 2, "rows differ"
    assert make(OURS).name == make(tf.feature_column).name


@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
@pytest.mark.parametrize("max_norm", [None, 9.0])
def test_embeddings_are_combined_as_tensorflow_does_it(combiner: str, max_norm: float | None) -> None:
    import tensorflow as tf

    def make(column: Any) -> Any:
        return column.embedding_column(tags(column), 3, combiner=combiner, max_norm=max_norm)

    np.testing.assert_allclose(of_ours(make), of_tensorflow(make), rtol=1e-5)
    assert make(OURS).name == make(tf.feature_column).name


@pytest.mark.parametrize(
    "make",
    [
        lambda c: c.numeric_column("age"),
        lambda c: c.numeric_column("size", shape=3),
        lambda c: c.numeric_column("size", (3,), normalizer_fn=lambda x: x * 2 + 1),
        ages,
    ],
)
def test_numbers_are_those_of_tensorflow(make: Make) -> None:
    for linear in (False, True):
        np.testing.assert_allclose(of_ours(make, linear), of_tensorflow(make, linear), rtol=1e-5, atol=1e-6)


def test_a_vocabulary_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cities.txt"
    path.write_bytes("Aachen\r\n映画\r\nChur\nmore\n".encode())

    def make(column: Any) -> Any:
        options = {"vocabulary_size": 3, "num_oov_buckets": 2}
        return column.categorical_column_with_vocabulary_file("city", str(path), **options)

    np.testing.assert_allclose(of_ours(make, True), of_tensorflow(make, True), rtol=1e-6)
    whole = OURS.categorical_column_with_vocabulary_file("city", path)
    assert (whole.size, whole.vocabulary) == (4, str(path))
    path.write_text("Aachen\n")
    with pytest.raises(ht.UserError, match=r"feature column 'city': vocabulary_file: .* has 1 lines"):
        of_ours(lambda _: whole)


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (b"a\nb\na\n", {}, "line 3 is that of line 1, 'a'; leave one out"),
        (b"a\n", {"vocabulary_size": 2}, "has 1 lines, and vocabulary_size is 2"),
        (b"", {}, "has 0 lines"),
        (b"1\nx\n", {"dtype": "int64"}, "line 2, 'x', is no whole number"),
        (b"\xff\n", {}, "is not UTF-8, first at byte 0"),
        (None, {}, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(
    tmp_path: Path, content: bytes | None, options: dict[str, Any], said: str
) -> None:
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ht.UserError) as caught:
        OURS.categorical_column_with_vocabulary_file("city", path, **options)
    where = f"categorical_column_with_vocabulary_file: vocabulary_file: {path}: "
    assert str(caught.value).startswith(where + said), caught.value


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(ht.UserError, match=f"vocabulary_file: {path}: cannot be read: "):
            OURS.categorical_column_with_vocabulary_file("city", path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: OURS.numeric_column("a", default_value=0),
            "numeric_column: default_value: leave it out: all rows of ",
        ),
        (lambda: OURS.bucketized_column(OURS.numeric_column("a"), [1, 1]), "bucketized_column: boundaries: [1, 1] is "),
        (lambda: OURS.crossed_column([city(OURS), "a"], 5), "crossed_column: keys: a hashed column would be hashed "),
        (lambda: OURS.embedding_column(city(OURS), 2, ckpt_to_load_from="x"), "embedding_column: ckpt_to_load_from: "),
        (
            lambda: OURS.categorical_column_with_vocabulary_list("a", range(2**16 + 1)),
            "categorical_column_with_vocabulary_list: vocabulary_list: range(0, 65537) is not allowed; allowed: ",
        ),
        (
            lambda: OURS.categorical_column_with_vocabulary_list("a", ["b"], dtype="int64"),
            "categorical_column_with_vocabulary_list: dtype: 'int64' is not allowed; allowed: that of the vocabulary, ",
        ),
        (
            lambda: OURS.categorical_column_with_vocabulary_list("a", ["b", "c"], default_value=1, num_oov_buckets=1),
            "categorical_column_with_vocabulary_list: default_value: num_oov_buckets has numbers for all other values",
        ),
    ],
)
def test_an_argument_that_is_not_allowed_is_named_with_the_way(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ht.UserError) as caught:
        make()
    assert str(caught.value).startswith(said), caught.value


def test_columns_that_are_not_there_are_answered_with_the_way() -> None:
    for name, said in (
        ("shared_embeddings", "give each column an embedding_column of its own"),
        ("sequence_numeric_column", "canned estimators take no sequences"),
        ("numeric_colum", "did you mean `numeric_column`"),
    ):
        with pytest.raises(AttributeError, match=said):
            getattr(OURS, name)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda c: c.numeric_column("city"), "feature column 'city': feature 'city' is of texts, and not of numbers"),
        (lambda c: c.numeric_column("size"), r"a row of feature 'size' has the shape \[3\], and not \[1\]; give "),
        (lambda c: c.numeric_column("none"), "takes the feature 'none', which the input has not; it has 'age', 'size'"),
        (lambda c: c.categorical_column_with_hash_bucket("day", 5), "is of whole numbers, and not of texts; give the "),
        (lambda c: c.categorical_column_with_hash_bucket("age", 5), "'age' is float32, and neither of texts nor of "),
        (lambda c: c.numeric_column("age", normalizer_fn=lambda x: x[:, :0]), r"normalizer_fn returned \[0\] a row"),
    ],
)
def test_features_that_do_not_fit_are_named(make: Make, said: str) -> None:
    with pytest.raises(ht.UserError, match=said):
        of_ours(make, linear=True)


def test_a_number_beyond_the_buckets_is_not_learnt_from_in_silence() -> None:
    import tensorflow as tf

    from hpc_train.canned.transformation import Batch

    column = OURS.categorical_column_with_identity("day", 4)

    def numbers(day: Any) -> Any:
        return Batch({"day": day}, {}).ids(column).numbers

    said = "feature column 'day': feature 'day' has a number that is not from 0 to 3; give the column more num_buckets"
    assert numbers(tf.constant([3, -1, 0])).numpy().ravel().tolist() == [3, -1, 0]
    with pytest.raises(ht.UserError, match=f"^{said}, or a default_value: 4, -2$"):
        numbers(tf.constant([4, 0, -2]))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.function(numbers)(tf.constant([4, 0, -2]))
    assert cause_of(caught.value).message == (
        f"InvalidArgumentError: assertion failed: [{said}, or a default_value:] [4 -2]"
    )


def test_a_large_table_is_looked_up() -> None:
    """A row of the batch touches rows of the table, and nothing of the table's size is made of it."""
    import tensorflow as tf

    from hpc_train.canned.model_fn import canned_model

    many = OURS.categorical_column_with_hash_bucket("city", 10**6)
    made = ht.DNNLinearCombinedClassifier(
        linear_feature_columns=[many], dnn_feature_columns=[OURS.embedding_column(many, 2)], dnn_hidden_units=[2]
    )
    model = canned_model(made.params)
    batch = {"city": tensors()["city"]}, tf.zeros([ROWS], tf.int64)

    @tf.function(autograph=False)
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(*batch, model(batch[0], training=True))
        return tape.gradient(loss, model.trainable_variables)

    graph = gradients.get_concrete_function().graph
    found = dict(zip([v.path for v in model.trainable_variables], graph.structured_outputs, strict=True))
    in_rows = [name for name, gradient in found.items() if isinstance(gradient, tf.IndexedSlices)]
    assert [name.rpartition("/")[2] for name in in_rows] == ["weights", "embedding_weights"]
    for operation in graph.get_operations():
        for output in operation.outputs:
            is_table = operation.type in ("ReadVariableOp", "Placeholder", "Identity")
            assert is_table or (output.shape.num_elements() or 0) < 10**6, operation
