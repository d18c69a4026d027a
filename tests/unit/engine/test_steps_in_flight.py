"""How many steps are in flight, after which they all have to be over, and what their calls look up."""

from __future__ import annotations

import keras
import pytest

from hpc_train.config.run_config import MOST_IN_FLIGHT, RunConfig
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import OneRank
from hpc_train.distributed.world import World
from hpc_train.engine.graph_call import GraphCall
from hpc_train.engine.own_train_step import make_own_train_step
from hpc_train.engine.step_report import Flags
from hpc_train.engine.steps_in_flight import Stream, drains_after, keeps_gradients_apart
from hpc_train.engine.train_step import make_train_step
from hpc_train.errors import UserError
from hpc_train.lazy import tf
from hpc_train.model.loss_terms import LossPlan
from hpc_train.model.model_state import ModelState
from hpc_train.model.own_steps import updates_of

BATCH = (tf.ones([2, 3]), tf.ones([2, 1]))


def drained(config: RunConfig, last: int) -> list[int]:
    drains = drains_after(config)
    return [step for step in range(1, last + 1) if drains(step)]


def test_all_steps_are_over_before_what_needs_the_models_state() -> None:
    never = {"save_summary_steps": 1000, "save_checkpoints_steps": None}
    assert drained(RunConfig("runs/a", **never), 30) == []
    assert drained(RunConfig("runs/a", **{**never, "save_summary_steps": 8}), 30) == [8, 16, 24]
    assert drained(RunConfig("runs/a", **{**never, "save_checkpoints_steps": 10}), 30) == [10, 20, 30]
    assert drained(RunConfig("runs/a", **never, check_replicas_steps=9), 30) == [9, 18, 27]
    assert drained(RunConfig("runs/a", **never, save_histograms_steps=15), 30) == [15, 30]
    assert drained(RunConfig("runs/a", **never, profile_steps=(5, 7)), 30) == [4, 5, 6, 7], "only what is profiled runs"


def test_how_many_is_checked_at_the_door() -> None:
    assert RunConfig("runs/a").steps_in_flight is None
    assert RunConfig("runs/a", steps_in_flight=MOST_IN_FLIGHT).steps_in_flight == MOST_IN_FLIGHT
    for wrong in (-1, MOST_IN_FLIGHT + 1, 1.5, "two"):
        with pytest.raises(UserError, match="steps_in_flight"):
            RunConfig("runs/a", steps_in_flight=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"max_staleness": 0}, {"prefetch_parameters": True}])
def test_asynchronous_workers_have_none_where_gradients_may_not_be_so_stale(other: dict[str, object]) -> None:
    (name,) = other
    with pytest.raises(UserError, match=f"steps_in_flight.*{name}.*exclude each other"):
        RunConfig("runs/a", strategy="async", steps_in_flight=1, **other)  # type: ignore[arg-type]
    for depth in (0, None):
        config = RunConfig("runs/a", strategy="async", steps_in_flight=depth, **other)  # type: ignore[arg-type]
        assert name in str(keeps_gradients_apart(config))
    assert "profile_steps" in str(keeps_gradients_apart(RunConfig("runs/a", strategy="async", profile_steps=(3, 5))))
    config = RunConfig("runs/a", strategy="async", steps_in_flight=1, max_staleness=1)
    assert keeps_gradients_apart(config) is None


def test_a_graph_is_looked_up_by_shapes_and_dtypes() -> None:
    traces = []

    @tf.function
    def doubled(x, y):
        traces.append(x.shape)
        return {"x": 2 * x}, y

    call = GraphCall(doubled)
    for _ in range(3):
        for rows in (2, 3):
            x, y = call(tf.ones([rows]), (tf.constant(7), tf.constant(8)))
            assert x["x"].numpy().tolist() == [2.0] * rows
            assert [int(one) for one in y] == [7, 8], "the structure is kept"
    x, _ = call(tf.ones([2], tf.float64), (tf.constant(7), tf.constant(8)))
    assert x["x"].dtype == tf.float64
    assert len(traces) == 3, "each kind is traced once"
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    assert call(ragged, tf.constant(1))[0]["x"].to_list() == [[2.0], [4.0, 6.0]], "which TensorFlow looks up itself"


def test_a_graph_reads_variables_as_they_are() -> None:
    variable = tf.Variable(1.0)
    call = GraphCall(tf.function(lambda x: variable.assign_add(x).read_value()))
    assert [float(call(tf.constant(1.0))) for _ in range(3)] == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("depth", [0, 2])
def test_a_stream_keeps_the_order(depth: int) -> None:
    variable, stream = tf.Variable(1.0), Stream(depth)
    call = GraphCall(tf.function(lambda x: variable.assign(2 * variable + x).read_value()))
    with stream.dispatching():
        results = [call(tf.constant(float(step))) for step in range(5)]
        assert [float(result) for result in results] == [2.0, 5.0, 12.0, 27.0, 58.0]


class Traced(keras.layers.Layer):
    """Notes the graph that it is traced in."""

    graph = None

    def call(self, x):
        Traced.graph = tf.compat.v1.get_default_graph()
        return x


class Own(keras.Model):
    """With a train_step of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


@pytest.mark.parametrize("kind", [keras.Model, Own])
def test_the_clock_is_read_before_anything_of_a_step_is_computed(kind: type[keras.Model]) -> None:
    """Whatever threads TensorFlow has: with one, it may run last what nothing waits for."""
    x = keras.Input((3,))
    model = kind(x, keras.layers.Dense(1)(Traced()(keras.layers.Dense(4)(x))))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    world = World.alone()
    state = ModelState(model, world, updates_of(model, tf.data.Dataset.from_tensors(BATCH), "model"))
    allreduce = GradientAllreduce(OneRank())
    if kind is Own:
        step = make_own_train_step(model, state, allreduce, False, LossPlan())
    else:
        step = make_train_step(model, allreduce, [], False)
    report = step(BATCH, Flags())()
    assert 0 < report.begun_at <= report.done_at
    products = [op for op in Traced.graph.get_operations() if op.type == "MatMul"]
    assert len(products) >= 4, "forward and backward"
    clock = next(op for op in Traced.graph.get_operations() if op.type == "Timestamp")
    assert all(clock in ancestors(op) for op in products)


def ancestors(op) -> set:
    """All operations that come before this one."""
    found, left = set(), [op]
    while left:
        one = left.pop()
        for other in (*(tensor.op for tensor in one.inputs), *one.control_inputs):
            if other not in found:
                found.add(other)
                left.append(other)
    return found
