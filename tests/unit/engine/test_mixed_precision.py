"""run.mixed_precision: what model_fn is called under, and what of it is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.config.estimator import Estimator
from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import OneRank
from hpc_train.engine.step_report import Flags
from hpc_train.engine.train_step import make_train_step
from hpc_train.errors import UserError
from hpc_train.model.builder import build_model

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")


def model_fn(params: dict[str, Any]) -> Any:
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", dtype=params.get("dtype")),
            keras.layers.BatchNormalization(dtype=params.get("dtype")),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    optimizer = params.get("optimizer") or keras.optimizers.SGD(0.05, global_clipnorm=1.0)
    model.compile(optimizer, "mse", auto_scale_loss=params.get("auto", True))
    return model


def built(precision: Any, function: Any = model_fn, **params: Any) -> Any:
    x = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensors((x, x[:, :1]))
    config = RunConfig(Path("unused"), mixed_precision=precision, tf_random_seed=1)
    return build_model(Estimator(function, config, params), dataset), next(iter(dataset))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_layers_compute_in_16_bits_and_variables_stay_float32(precision: str) -> None:
    model, batch = built(precision)
    assert [layer.compute_dtype for layer in model.layers] == [precision, precision, "float32"]
    assert {v.dtype for v in model.variables if "seed" not in v.name} == {"float32"}
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (precision == "float16")
    assert keras.mixed_precision.dtype_policy().name == "float32"
    model.optimizer.build(model.trainable_variables)
    for pieces in (1, 4):
        step = make_train_step(
            model, GradientAllreduce(OneRank()), model.non_trainable_variables, undo=True, accumulate_steps=pieces
        )
        losses = [step(batch, Flags())().loss for _ in range(15)]
        assert losses[-1] < losses[0]
    plain, _ = built(None)
    assert {layer.compute_dtype for layer in plain.layers} == {"float32"}


def test_the_policy_is_given_back_where_model_fn_fails() -> None:
    def fails(params: dict[str, Any]) -> Any:
        assert keras.mixed_precision.dtype_policy().name == "mixed_bfloat16"
        raise KeyError("lost")

    with pytest.raises(KeyError):
        built("bfloat16", fails)
    assert keras.mixed_precision.dtype_policy().name == "float32"


def test_a_model_that_computes_otherwise_is_refused() -> None:
    with pytest.raises(UserError, match=r"mixed_precision is bfloat16, but the layers of model_fn compute in float32"):
        built("bfloat16", dtype="float32")


def test_a_loss_scale_is_added_where_there_is_none_and_the_users_own_is_kept() -> None:
    own = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=8.0)
    assert built("float16", optimizer=own)[0].optimizer is own
    added = built("float16", auto=False)[0].optimizer
    assert isinstance(added, keras.optimizers.LossScaleOptimizer)
    assert added.inner_optimizer.global_clipnorm == 1.0
    fixed = keras.optimizers.SGD(0.05, loss_scale_factor=128.0)
    assert built("float16", optimizer=fixed, auto=False)[0].optimizer is fixed


@pytest.mark.parametrize("pieces", [1, 4])
def test_an_overflow_halves_the_scale_and_leaves_the_step_out(pieces: int) -> None:
    """Gradients are clipped after the loss scale is taken out: the update is that of float32."""
    own = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05, global_clipnorm=0.1), initial_scale=2.0**30)
    model, batch = built("float16", optimizer=own)
    own.build(model.trainable_variables)
    step = make_train_step(
        model, GradientAllreduce(OneRank()), model.non_trainable_variables, undo=False, accumulate_steps=pieces
    )
    kernel = model.layers[0].kernel
    before = kernel.numpy()
    report = step(batch, Flags())()
    assert report.applied
    assert np.isfinite(report.loss)
    assert float(own.dynamic_scale) == 2.0**29
    assert int(own.iterations) == 0
    np.testing.assert_array_equal(kernel.numpy(), before)
    while not int(own.iterations):
        before = [v.numpy() for v in model.trainable_variables]
        step(batch, Flags())()
    moved = np.sqrt(sum(np.sum((v.numpy() - b) ** 2) for v, b in zip(model.trainable_variables, before, strict=True)))
    assert moved == pytest.approx(0.05 * 0.1, rel=1e-2)
