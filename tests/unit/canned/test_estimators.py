"""What canned estimators take and refuse, and the plain data that they become."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpc_train as ht
from hpc_train.canned.arguments import Canned, UserFunction, as_plain, from_plain
from hpc_train.canned.model_fn import canned_model
from hpc_train.model.builder import build_model, sparse_classes
from hpc_train.resilience.cause import cause_of

C: Any = ht.feature_column
AGE, DAY = C.numeric_column("age"), C.categorical_column_with_identity("day", 7)
DEEP = [AGE, C.indicator_column(DAY)]


def combined(**options: Any) -> ht.Estimator:
    given = {"linear_feature_columns": [DAY], "dnn_feature_columns": DEEP, "dnn_hidden_units": [2]}
    return ht.DNNLinearCombinedClassifier(**{**given, **options})


def optimizers(estimator: ht.Estimator) -> list[tuple[str, float]]:
    """Classes and learning rates, of the DNN first."""
    optimizer: Any = canned_model(estimator.params).optimizer
    parts = getattr(optimizer, "optimizers", [optimizer])
    found = [(type(part).__name__, round(float(part.learning_rate), 7)) for part in parts]
    return sorted(found, key=lambda pair: pair[0] == "Ftrl")


COLUMNS = [C.categorical_column_with_hash_bucket(f"c{number}", 3) for number in range(60_000)]


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [
        (lambda: ht.LinearClassifier([AGE]), [("Ftrl", 0.2)]),
        (lambda: ht.LinearRegressor([AGE, DAY], optimizer="Adam"), [("Adam", 0.2)]),
        (lambda: ht.LinearClassifier(COLUMNS[:30]), [("Ftrl", 0.2)]),
        (lambda: ht.LinearClassifier(COLUMNS[:100], optimizer=None), [("Ftrl", 0.1)]),
        (lambda: ht.DNNClassifier([2], DEEP), [("Adagrad", 0.05)]),
        (lambda: ht.DNNRegressor([2], DEEP, optimizer="RMSProp"), [("RMSprop", 0.05)]),
        (combined, [("Adagrad", 0.001), ("Ftrl", 0.005)]),
        (lambda: combined(linear_feature_columns=None), [("Adagrad", 0.001)]),
        (lambda: combined(dnn_feature_columns=None, dnn_hidden_units=None), [("Ftrl", 0.005)]),
    ],
)
def test_learning_rates_of_optimizers_by_name_are_estimators(
    estimator: Callable[[], ht.Estimator], wanted: list[tuple[str, float]]
) -> None:
    assert optimizers(estimator()) == wanted


def test_the_rate_of_a_combined_linear_part_sinks_with_its_columns() -> None:
    params = combined(linear_feature_columns=COLUMNS).params
    assert params["wide"]["optimizer"]["config"]["learning_rate"] == pytest.approx(60_000**-0.5)


def test_optimizers_of_keras_are_taken_as_they_are_or_made_by_a_function() -> None:
    import keras

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.5)
    made = combined(
        dnn_optimizer=lambda: keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True),
        linear_optimizer=keras.optimizers.Ftrl(0.3, l1_regularization_strength=0.01),
    )
    assert json.loads(json.dumps(made.params)) == made.params, "plain data"
    first, second = (canned_model(made.params).optimizer for _ in range(2))
    assert first is not second and not {*map(id, first.optimizers)} & {*map(id, second.optimizers)}
    sgd, ftrl = sorted(first.optimizers, key=lambda part: type(part).__name__, reverse=True)
    assert (sgd.momentum, sgd.nesterov, sgd._learning_rate.get_config()) == (0.9, True, schedule.get_config())
    assert ftrl.l1_regularization_strength == 0.01 and float(ftrl.learning_rate) == pytest.approx(0.3)
    with pytest.raises(ht.UserError, match=r"DNNRegressor: optimizer: SGD is not all data.*a schedule of Keras"):
        ht.DNNRegressor([2], DEEP, optimizer=keras.optimizers.SGD(lambda: 0.1))
    for scaling in (
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
        keras.optimizers.SGD(loss_scale_factor=2.0),
    ):
        with pytest.raises(ht.UserError, match="optimizer: losses are scaled by RunConfig's mixed_precision"):
            ht.DNNRegressor([2], DEEP, optimizer=scaling)


def test_layers_are_as_asked_for() -> None:
    import keras

    made = ht.DNNRegressor([3, 2], DEEP, activation_fn=keras.activations.tanh, dropout=0.25, batch_norm=True)
    tower = canned_model(made.params).dnn
    assert [(layer.units, layer.activation) for layer in tower._hidden] == [(n, keras.activations.tanh) for n in (3, 2)]
    assert [layer.rate for layer in tower._dropout] == [0.25, 0.25]
    assert [layer.momentum for layer in tower._normed] == [0.999, 0.999]
    initial = C.embedding_column(DAY, 3, initializer=keras.initializers.Constant(2.0), trainable=False)
    model = canned_model(ht.DNNRegressor([2], [initial]).params)
    assert canned_model(made.params).get_config() == {"canned": made.params}
    (table,) = model.non_trainable_variables
    assert table.path.endswith("day_embedding/embedding_weights") and float(table.numpy().mean()) == 2


def doubled(numbers: Any) -> Any:
    return numbers * 2


def test_params_are_plain_data_and_become_the_same_again() -> None:
    crossed = C.crossed_column([C.bucketized_column(AGE, [0, 1]), DAY, "city"], 10, hash_key=3)
    tags = C.categorical_column_with_vocabulary_list("tags", ["a", "b"], num_oov_buckets=2)
    made = combined(linear_feature_columns=[crossed, tags], label_vocabulary=["no", "yes"], weight_column="weight")
    described = json.loads(json.dumps(made.params))
    assert described == made.params and isinstance(from_plain(described), Canned)
    assert as_plain(from_plain(described)) == described
    assert from_plain(described).keys == ["age", "day", "city", "tags"]

    numeric = C.numeric_column("age", normalizer_fn=doubled)
    params = ht.LinearRegressor([numeric]).params
    (column,) = params["wide"]["columns"]
    assert isinstance(column["normalizer_fn"], UserFunction) and from_plain(params).columns == (numeric,)
    written = json.loads(json.dumps(params, default=str))
    assert from_plain(written).columns[0].normalizer_fn.__name__ == "doubled", "it is imported"
    written["wide"]["columns"][0]["normalizer_fn"] = f"{__name__}:test.<locals>.<lambda>"
    with pytest.raises(ht.UserError, match=r"the job's normalizer_fn is .*cannot import it"):
        from_plain(written)
    for broken in ({**described, "kind": "Tower"}, {**described, "more": 1}):
        with pytest.raises(ht.UserError, match=r"is nothing that ht\.DNNClassifier and its like write"):
            canned_model(broken)
    with pytest.raises(ht.UserError, match="they describe no canned estimator"):
        canned_model({"learning_rate": 0.1})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ht.LinearClassifier([]), "LinearClassifier: feature_columns: [] is not allowed; allowed: a list of "),
        (
            lambda: ht.LinearClassifier([AGE, AGE]),
            "LinearClassifier: feature_columns: there are two columns called 'age'",
        ),
        (
            lambda: ht.LinearClassifier([C.embedding_column(DAY, 2)]),
            "LinearClassifier: feature_columns: 'day_embedding' is an embedding_column, which a linear model has none "
            "of; give the categorical column 'day' itself",
        ),
        (
            lambda: ht.DNNClassifier([2], [DAY]),
            "DNNClassifier: feature_columns: 'day' is categorical, and a DNN takes ",
        ),
        (
            lambda: ht.DNNClassifier([0], DEEP),
            "DNNClassifier: hidden_units: 0 is not allowed; allowed: a whole number ",
        ),
        (
            lambda: ht.DNNClassifier([2], DEEP, n_classes=1),
            "DNNClassifier: n_classes: 1 is not allowed; allowed: a whole",
        ),
        (
            lambda: ht.DNNClassifier([2], DEEP, label_vocabulary=["a"]),
            "DNNClassifier: label_vocabulary: ['a'] is not allowed; allowed: a list of 2 texts, each once",
        ),
        (
            lambda: ht.DNNClassifier([2], DEEP, optimizer="adam"),
            "DNNClassifier: optimizer: 'adam' is not allowed; allow",
        ),
        (
            lambda: ht.DNNClassifier([2], DEEP, activation_fn=None),
            "DNNClassifier: activation_fn: None is not allowed; ",
        ),
        (
            lambda: ht.DNNClassifier([2], DEEP, dropout=1),
            "DNNClassifier: dropout: 1 is not allowed; allowed: a number ",
        ),
        (
            lambda: ht.DNNRegressor([2], DEEP, loss_reduction="none"),
            "DNNRegressor: loss_reduction: 'none' is not allowed; allowed: 'sum_over_batch_size' or 'sum'",
        ),
        (
            lambda: ht.DNNRegressor([2], DEEP, warm_start_from=3),
            "DNNRegressor: warm_start_from: 3 is not allowed; allow",
        ),
        (
            lambda: ht.DNNRegressor([2], DEEP, model_dir="a", config=ht.RunConfig("b")),
            "DNNRegressor: model_dir: config has another, b; give one of them alone",
        ),
        (lambda: ht.DNNLinearCombinedRegressor(), "DNNLinearCombinedRegressor: linear_feature_columns: give them, or "),
        (
            lambda: combined(dnn_hidden_units=None),
            "DNNLinearCombinedClassifier: dnn_hidden_units: None is not allowed; allowed: a list of the sizes of the ",
        ),
        (
            lambda: combined(dnn_feature_columns=None),
            "DNNLinearCombinedClassifier: dnn_hidden_units: without dnn_feature_columns there is no DNN",
        ),
        (
            lambda: ht.DNNClassifier([2], DEEP, input_layer_partitioner=None),
            'DNNClassifier: input_layer_partitioner: with `strategy` "async" large tables are cut among parameter ',
        ),
    ],
)
def test_what_is_not_allowed_is_named_with_the_way(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ht.UserError) as caught:
        make()
    assert str(caught.value).startswith(said), caught.value


def test_model_dir_is_the_job_dir() -> None:
    assert ht.LinearRegressor([AGE], "runs/a").config.model_dir == Path("runs/a")
    assert ht.LinearRegressor([AGE], config=ht.RunConfig("b")).config.model_dir == Path("b")
    assert ht.LinearRegressor([AGE], "b", config=ht.RunConfig("b", strategy="async")).config.strategy == "async"
    with pytest.raises(AttributeError, match=r"no train: call ht\.train_and_evaluate"):
        ht.LinearRegressor([AGE]).train  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'DNNEstimator'; .*ht\.DNNClassifier or "):
        ht.DNNEstimator  # type: ignore[attr-defined] # noqa: B018


def test_labels_that_do_not_fit_are_named() -> None:
    import tensorflow as tf

    def loss(estimator: ht.Estimator, labels: Any) -> Any:
        model, x = canned_model(estimator.params), {"age": tf.zeros([2])}
        return model.compute_loss(x, tf.constant(labels), model(x))

    texts = {"label_vocabulary": ["no", "yes"]}
    for estimator, labels, said in (
        (ht.LinearClassifier([AGE]), ["a", "b"], "labels are texts; give the estimator label_vocabulary"),
        (ht.LinearClassifier([AGE], **texts), [0, 1], "labels are int32, but label_vocabulary is for labels that are"),
        (ht.LinearRegressor([AGE]), ["a", "b"], "labels are texts, and this is a regression"),
        (ht.LinearRegressor([AGE]), [[1, 2], [3, 4]], r"has the shape \[2\], and label_dimension is 1"),
    ):
        with pytest.raises(ht.UserError, match=said):
            loss(estimator, labels)
    whole = canned_model(ht.LinearClassifier([AGE], n_classes=3).params)
    assert sparse_classes(whole, ["answer"]) == {"answer": (3, None)}, "labels of shards are looked at before"
    assert sparse_classes(canned_model(ht.LinearClassifier([AGE], **texts).params), ["answer"]) == {}
    assert bool(tf.math.is_nan(loss(ht.LinearClassifier([AGE], **texts), ["no", "never"]))), "nothing is learnt from it"
    assert float(loss(ht.LinearClassifier([AGE], **texts), ["no", "yes"])) == pytest.approx(0.6931472)


def test_rows_do_not_count_less_than_nothing() -> None:
    import tensorflow as tf

    model = canned_model(ht.LinearRegressor([AGE], weight_column="w").params)

    def loss(weights: Any) -> Any:
        x = {"age": tf.zeros([2]), "w": weights}
        return model.compute_loss(x, tf.constant([1.0, 3.0]), model(x))

    assert float(loss(tf.constant([1.0, 0.0]))) == pytest.approx(0.5)
    said = "weight_column 'w' has a negative number, by which no row can count; write numbers from 0 on into the data"
    with pytest.raises(ht.UserError, match=f"^{said}: -0.5$"):
        loss(tf.constant([1.0, -0.5]))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.function(loss)(tf.constant([1.0, -0.5]))
    assert cause_of(caught.value).message == f"InvalidArgumentError: assertion failed: [{said}:] [-0.5]"


def test_what_is_wrong_with_a_feature_is_said_without_the_words_of_keras() -> None:
    import tensorflow as tf

    for features, said in (
        ({"years": tf.zeros([4])}, "feature column 'age' takes the feature 'age', which the input has not; it has 'y"),
        ({"age": tf.constant(["a"] * 4)}, "feature column 'age': feature 'age' is of texts, and not of numbers"),
    ):
        data = tf.data.Dataset.from_tensor_slices((features, tf.zeros([4]))).batch(2)
        with pytest.raises(ht.UserError) as caught:
            build_model(ht.LinearRegressor([AGE]), data)
        assert str(caught.value).startswith(said)
