"""Models with a train_step of their own: what it updates, what is refused, and that a step is made whole or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.config.estimator import Estimator
from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import OneRank
from hpc_train.distributed.world import World
from hpc_train.engine.own_train_step import make_own_train_step
from hpc_train.engine.step_report import Flags, TrainStep
from hpc_train.errors import UserError
from hpc_train.export.signature import default_serving, signature_of
from hpc_train.model.builder import build_model
from hpc_train.model.loss_terms import LossPlan
from hpc_train.model.model_state import ModelState
from hpc_train.model.own_steps import updates_of


class Pair(keras.Model):
    """Two networks with an optimizer each: the second is updated with what the first has become."""

    def __init__(self, second_loss: Callable[[Any], Any] = tf.reduce_mean) -> None:
        super().__init__()
        self.one = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh")])
        self.other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        self.second_loss = second_loss
        self.tracker = keras.metrics.Mean("one_loss")

    def compile(self) -> None:
        super().compile()
        self.one_optimizer, self.other_optimizer = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.9)

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.one(x)))
        variables = self.one.trainable_variables
        self.one_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        with tf.GradientTape() as tape:
            second = self.second_loss(self.other(self.one(x)))
        self.other_optimizer.apply(
            tape.gradient(second, self.other.trainable_variables), self.other.trainable_variables
        )
        self.tracker.update_state(loss)
        return {"one_loss": self.tracker.result(), "other_loss": second}


def batches(count: int = 4) -> list[Any]:
    return list(tf.random.stateless_normal([count, 6, 3], seed=(1, 2)))


def pair(second_loss: Callable[[Any], Any] = tf.reduce_mean) -> Pair:
    keras.utils.set_random_seed(3)
    model = Pair(second_loss)
    model.compile()
    return model


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(batches(1)[0])


def step_of(model: keras.Model, undo: bool = True) -> tuple[TrainStep, ModelState]:
    state = ModelState(model, World.alone(), updates_of(model, dataset(), "build"))
    return make_own_train_step(model, state, GradientAllreduce(OneRank()), undo, LossPlan()), state


def values(state: ModelState) -> list[np.ndarray]:
    return [np.array(variable.numpy()) for variable in state.everything()]


def test_all_optimizers_are_found_and_built_in_the_order_of_their_updates() -> None:
    model = pair()
    updates = updates_of(model, dataset(), "build")
    assert [optimizer for optimizer, _ in updates.optimizers] == [model.one_optimizer, model.other_optimizer]
    assert updates.times == (1, 1)
    assert all(optimizer.built for optimizer, _ in updates.optimizers)
    assert int(model.one_optimizer.iterations) == 0


def test_one_rank_trains_as_fit_to_the_bit() -> None:
    ours, theirs = pair(), pair()
    step, _ = step_of(ours)
    theirs.make_train_function()
    for batch in batches():
        report = step(batch, Flags())()
        logs = theirs.train_function(iter([batch]))
        assert report.applied
        assert report.values["other_loss"] == float(logs["other_loss"])
    for one, other in zip(ours.variables, theirs.variables, strict=True):
        assert np.array_equal(one.numpy(), other.numpy())
    for one, other in zip(ours.one_optimizer.variables, theirs.one_optimizer.variables, strict=True):
        assert np.array_equal(one.numpy(), other.numpy())


def test_of_several_optimizers_all_or_none_are_applied() -> None:
    limit = tf.Variable(0.0)
    model = pair(lambda t: tf.reduce_mean(t) / limit)  # infinite as long as it is 0, after the first update
    step, state = step_of(model)
    before = values(state)
    report = step(batches()[0], Flags())()
    assert (report.applied, report.to_blame) == (False, True)
    assert all(np.array_equal(one, other) for one, other in zip(before, values(state), strict=True))
    limit.assign(1.0)
    assert step(batches()[0], Flags(leave_out=True))().applied is False
    assert all(np.array_equal(one, other) for one, other in zip(before, values(state), strict=True))
    assert step(batches()[0], Flags())().applied
    assert not all(np.array_equal(one, other) for one, other in zip(before, values(state), strict=True))


class Lone(keras.Model):
    """A model whose train_step is `body`."""

    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.dense, self.body = keras.layers.Dense(1), body

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, x: Any) -> Any:
        return self.body(self, x)

    def update(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return loss


def in_cond(model: Any, x: Any) -> Any:
    return {"loss": tf.cond(tf.reduce_max(x) > 0, lambda: model.update(x), lambda: tf.constant(0.0))}


def in_python(model: Any, x: Any) -> Any:
    return {"loss": tf.py_function(lambda x: model.update(x), [x], tf.float32)}


def without(model: Any, x: Any) -> Any:
    return {"loss": tf.reduce_mean(model(x))}


def silent(model: Any, x: Any) -> Any:
    model.update(x)


def bare(model: Any, x: Any) -> Any:
    return model.update(x)


def wordy(model: Any, x: Any) -> Any:
    return {"loss": model.update(x), "state": "good"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (wordy, "returns 'state', which is no number; leave it out"),
        (without, "applies no gradients: call optimizer.apply"),
        (in_python, "applies no gradients outside of what TensorFlow can trace"),
        (silent, "returns NoneType, and no numbers by name"),
        (bare, "and no numbers by name; return {'loss': loss}"),
    ],
)
def test_a_train_step_that_ranks_could_not_make_together_is_refused(body: Any, words: str) -> None:
    model = Lone(body)
    model.compile("sgd", "mse")
    model(batches(1)[0])
    with pytest.raises(UserError, match=words.replace("(", r"\(").replace("{", r"\{")) as found:
        updates_of(model, dataset(), "model.py:build")
    assert str(found.value).startswith("model.py:build: train_step of Lone")


class Unpacking(Lone):
    def train_step(self, batch: Any) -> Any:
        x, _ = batch
        return {"loss": self.update(x)}


def unpacking_elsewhere(model: Any, batch: Any) -> Any:
    x, _ = batch
    return {"loss": model.update(x)}


def test_a_train_step_that_does_not_take_weights_is_told_of_them() -> None:
    x = batches(1)[0]
    weights = np.ones(len(x), np.float32)
    weighed = tf.data.Dataset.from_tensors((x, weights, weights))
    for model, error, words in (
        (Unpacking(without), UserError, "it has 3, x, y, sample_weight, as train.class_weight or .* takes any"),
        (Lone(unpacking_elsewhere), ValueError, "too many values to unpack"),
    ):
        model.compile("sgd", "mse")
        model(x)
        with pytest.raises(error, match=words):
            updates_of(model, weighed, "build")


def test_updates_of_one_optimizer_in_a_step_are_counted() -> None:
    def twice(model: Any, x: Any) -> Any:
        model.update(x)
        return {"loss": model.update(x)}

    model = Lone(twice)
    model.compile("sgd", "mse")
    assert updates_of(model, dataset(), "build").times == (2,)


def test_a_decorated_train_step_and_that_of_an_object_run() -> None:
    def body(model: Any, x: Any) -> Any:
        return {"loss": model.update(x)}

    class Decorated(Lone):
        @tf.function
        def train_step(self, x: Any) -> Any:
            return {"loss": self.update(x)}

    decorated = Decorated(body)
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    plain.train_step = lambda x: {"loss": Lone.update(plain, x)}
    branching = Lone(in_cond)
    for model in (decorated, plain, branching):
        model.compile("sgd", "mse")
        step, _ = step_of(model)
        first, second = (step(batches(1)[0], Flags())().loss for _ in range(2))
        assert second < first


def test_what_fit_alone_would_call_is_refused() -> None:
    class Own(keras.Sequential):
        def make_train_function(self, force: bool = False) -> Any:
            return None

    def build() -> keras.Model:
        model = Own([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    with pytest.raises(UserError, match="make_train_function of its own"):
        build_model(Estimator(build, RunConfig("x")), dataset())


def test_exports_call_a_predict_step_of_ones_own() -> None:
    class Doubled(keras.Sequential):
        def predict_step(self, batch: Any) -> Any:
            return 2 * self(batch[0])

    keras.utils.set_random_seed(1)
    model = Doubled([keras.Input((3,), name="x"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = batches(1)[0]
    serve = default_serving(model, signature_of(model, (tf.TensorSpec([None, 3]),)))
    (served,) = serve({"x": x}).values()
    np.testing.assert_allclose(served, 2 * model(x), rtol=1e-6)


def test_a_metric_that_raises_is_named_with_its_line() -> None:
    class Failing(keras.metrics.Mean):
        def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
            raise RuntimeError("no such class")

    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Failing()])
        return model

    data = tf.data.Dataset.from_tensors((batches(1)[0], tf.zeros([6, 1])))
    with pytest.raises(UserError, match=r"a metric raises RuntimeError: no such class \(.*test_own_steps.py, line \d+"):
        build_model(Estimator(build, RunConfig("x")), data)
