import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.config.table_schema import TableSchema
from hpc_train.errors import UserError
from hpc_train.models.heads import BinaryHead, ClassesHead, CountsHead, Head, RegressionHead, head_of

RANDOM = np.random.default_rng(5)
HIDDEN = RANDOM.normal(size=(600, 3)).astype("float32")
HEADS = {
    "binary": BinaryHead((75, 25)),
    "classes": ClassesHead(7, (1, 2, 3, 4, 5, 6, 0)),
    "regression": RegressionHead(1e6, 20.0),
    "counts": CountsHead(4.0),
}
LABELS = {
    "binary": (HIDDEN[:, 0] > 0.5).astype("int64"),
    "classes": RANDOM.integers(0, 7, 600),
    "regression": 1e6 + 20 * HIDDEN.sum(1, dtype="float64"),
    "counts": RANDOM.poisson(np.exp(1.2 + HIDDEN[:, 0])).astype("float64"),
}


def compiled(head: Head, rate: float = 0.0) -> keras.Model:
    inputs = keras.Input((3,))
    logits = head.logits(inputs, kernel_initializer="zeros")
    model = keras.Model(inputs, head.outputs(logits))
    optimizer = keras.optimizers.Adam(rate)
    model.compile(optimizer, head.loss(), [head.loss_weight], metrics=head.metrics())
    return model


def test_a_model_that_knows_nothing_predicts_what_the_statistics_say():
    found = {task: compiled(head)(HIDDEN[:1]).numpy()[0] for task, head in HEADS.items()}
    np.testing.assert_allclose(found["binary"], [0.25], rtol=1e-6)
    np.testing.assert_allclose(found["classes"], np.array([1, 2, 3, 4, 5, 6, 0.5]) / 21.5, rtol=1e-5)
    np.testing.assert_allclose(found["regression"], [1e6])
    np.testing.assert_allclose(found["counts"], [4.0], rtol=1e-6)


@pytest.mark.parametrize("task", HEADS)
def test_labels_of_one_axis_are_learned(task):
    model = compiled(HEADS[task], 0.05)
    before = model.evaluate(HIDDEN, LABELS[task], verbose=0, return_dict=True)
    model.fit(HIDDEN, LABELS[task], epochs=5, verbose=0)
    after = model.evaluate(HIDDEN, LABELS[task], verbose=0, return_dict=True)
    assert after["loss"] < before["loss"]
    assert all(math.isfinite(value) for value in after.values())
    if "label_mean" in after:
        assert after["label_mean"] == pytest.approx(LABELS[task].mean(), rel=1e-6)
        assert after["prediction_mean"] == pytest.approx(model.predict(HIDDEN, verbose=0).mean(), rel=1e-5)


def area_under_curve(label: np.ndarray, predicted: np.ndarray) -> float:
    """How often a row of class 1 has a larger prediction than one of class 0."""
    ones, zeros = predicted[label == 1], predicted[label == 0]
    return float((ones[:, None] > zeros).mean() + (ones[:, None] == zeros).mean() / 2)


def test_metrics_are_what_they_are_by_definition():
    found, predicted = {}, {}
    for task in HEADS:
        model = compiled(HEADS[task], 0.05)
        model.fit(HIDDEN, LABELS[task], epochs=3, verbose=0)
        found[task] = model.evaluate(HIDDEN, LABELS[task], verbose=0, return_dict=True)
        predicted[task] = model.predict(HIDDEN, verbose=0).astype("float64")[:, 0]
    assert found["binary"]["auc"] == pytest.approx(area_under_curve(LABELS["binary"], predicted["binary"]), abs=5e-4)
    label, errors = LABELS["regression"], LABELS["regression"] - predicted["regression"]
    assert found["regression"]["r2"] == pytest.approx(1 - (errors**2).mean() / label.var(), abs=1e-4)
    assert found["regression"]["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), abs=0.06), "of float32"
    label, mean = LABELS["counts"], predicted["counts"]
    terms = np.where(label > 0, label * np.log(np.maximum(label, 1) / mean), 0) - (label - mean)
    assert found["counts"]["poisson_deviance"] == pytest.approx(2 * terms.mean(), rel=1e-4)


@pytest.mark.parametrize("head", [BinaryHead(), ClassesHead(2)])
def test_the_loss_of_sure_predictions_is_that_of_their_logits(head):
    """Were it computed of probabilities, it would be cut off at 16, with a gradient of 0."""
    logits = keras.Input((head.units,))
    model = keras.Model(logits, head.outputs(logits))
    model.compile("sgd", head.loss())
    given = tf.constant([[200.0] * (head.units - 1) + [-200.0]])
    label = tf.constant([1], tf.int64)

    @tf.function
    def loss_and_gradient():
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = model.compute_loss(None, label, model(given, training=True))
        return loss, tape.gradient(loss, given)

    loss, gradient = loss_and_gradient()
    assert float(loss) == pytest.approx(200.0 * head.units)
    assert float(gradient[0, -1]) == pytest.approx(-1.0)


def test_a_schema_has_a_head():
    def of(task: str | None, label: dict[str, object]) -> Head:
        return head_of(TableSchema(task=task, columns={"y": {"role": "label", **label}}))

    text = {"type": "text", "vocabulary": ["no", "yes"]}
    assert of("binary", text) == BinaryHead()
    assert of("binary", {**text, "statistics": {"count": 5, "counts": [2, 3]}}) == BinaryHead((2, 3))
    assert of("classes", text) == ClassesHead(2)
    assert of("regression", {"type": "number", "statistics": {"count": 5, "mean": 2, "std": 0}}) == RegressionHead(2)
    assert of("counts", {"type": "integer", "statistics": {"count": 5, "mean": 2}}) == CountsHead(2)
    with pytest.raises(UserError, match="no label"):
        head_of(TableSchema(columns={"x": {"type": "number", "role": "numeric"}}))
    with pytest.raises(UserError, match="counts needs a number for each of 2 classes"):
        of("binary", {**text, "statistics": {"count": 5, "counts": [2]}})
