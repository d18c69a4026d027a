"""Updates in one operation are those of Keras, to rounding, with all that Keras does around them."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.optimizers.fused import fused_updates

SHAPES = ((7, 5), (5,), (3, 3, 2))


def made(
    optimizer: Callable[[], keras.optimizers.Optimizer], fused: bool, takes_one_operation: bool = True
) -> list[np.ndarray]:
    """Variables and the optimizer's state after a few updates."""
    random = np.random.default_rng(1)
    variables = [keras.Variable(random.normal(size=shape).astype(np.float32)) for shape in SHAPES]
    rule = optimizer()
    rule.build(variables)

    @tf.function
    def apply(gradients: list[tf.Tensor]) -> None:
        if fused:
            with fused_updates(rule):
                rule.apply_gradients(zip(gradients, variables, strict=True))
        else:
            rule.apply_gradients(zip(gradients, variables, strict=True))

    traced = apply.get_concrete_function([tf.zeros(shape) for shape in SHAPES]).graph.as_graph_def()
    nodes = [*traced.node, *(node for function in traced.library.function for node in function.node_def)]
    assert any(node.op.startswith("ResourceApply") for node in nodes) == (fused and takes_one_operation)
    for _ in range(5):
        apply([tf.constant(random.normal(size=shape).astype(np.float32)) for shape in SHAPES])
    assert "update_step" not in vars(getattr(rule, "inner_optimizer", rule))
    return [v.numpy() for v in (*variables, *rule.variables)]


RULES = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01, use_ema=True),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 4), momentum=0.9),
    "SGD, accumulated": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "Adam, accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=8.0),
}


@pytest.mark.parametrize("rule", RULES)
def test_they_are_those_of_keras(rule: str) -> None:
    for ours, theirs in zip(made(RULES[rule], True), made(RULES[rule], False), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


class Own(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, 2 * gradient * learning_rate)


@pytest.mark.parametrize("rule", [lambda: Own(0.1), lambda: keras.optimizers.Adam(0.01, amsgrad=True)])
def test_other_rules_stay_as_they_are(rule: Callable[[], keras.optimizers.Optimizer]) -> None:
    for ours, theirs in zip(made(rule, True, False), made(rule, False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_variables_of_other_types_have_their_own_update() -> None:
    variable = keras.Variable(np.ones(3), dtype="bfloat16")
    rule = keras.optimizers.SGD(0.5)
    rule.build([variable])

    @tf.function
    def apply(gradient: tf.Tensor) -> None:
        with fused_updates(rule):
            rule.apply_gradients([(gradient, variable)])

    gradient = tf.ones(3, tf.bfloat16)
    assert not any(
        op.type.startswith("ResourceApply") for op in apply.get_concrete_function(gradient).graph.get_operations()
    )
    apply(gradient)
    np.testing.assert_array_equal(variable.numpy().astype(np.float32), np.full(3, 0.5))
