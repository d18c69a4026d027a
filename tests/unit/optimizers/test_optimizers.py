"""What optimizers of big batches need: the scaling rule, warm-up, LARS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.distributed.launcher import launched_ranks
from hpc_train.distributed.scaling import scaled_learning_rate
from hpc_train.errors import UserError

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hpc_train.optimizers.lars import LARS  # noqa: E402
from hpc_train.optimizers.warm_up import WarmUp  # noqa: E402
from tests.support import examples  # noqa: E402


@given(st.floats(1e-6, 10), st.integers(1, 4096), st.integers(1, 512), st.integers(1, 4096))
def test_k_times_the_batch_takes_k_times_the_rate(rate: float, batch: int, ranks: int, base: int) -> None:
    scaled = scaled_learning_rate(rate, batch, ranks, base)
    assert scaled == pytest.approx(rate * (batch * ranks / base))
    assert scaled == pytest.approx(scaled_learning_rate(rate, batch * ranks, base_batch=base))
    assert scaled_learning_rate(rate, base, base_batch=base) == pytest.approx(rate)


@pytest.mark.parametrize("name", ["base_rate", "batch_size", "ranks", "base_batch"])
def test_the_rule_refuses_what_is_not_above_0(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}: 0 is not allowed; allowed: a number above 0"):
        scaled_learning_rate(**{"base_rate": 0.1, "batch_size": 8, name: 0})  # type: ignore[arg-type]


def test_ranks_are_those_that_the_launcher_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert launched_ranks() == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "12")
    assert launched_ranks() == 12


@settings(max_examples=examples(30))
@given(st.floats(0.01, 2), st.integers(0, 50), st.floats(0, 0.01))
def test_the_rate_rises_linearly_then_goes_on_with_the_schedule_from_its_start(
    rate: float, steps: int, start: float
) -> None:
    cosine = keras.optimizers.schedules.CosineDecay(rate, 100)
    warm, constant = WarmUp(cosine, steps, start), WarmUp(rate, steps, start)
    for step in {0, steps // 2, max(0, steps - 1)}:
        if step < steps:
            expected = start + (rate - start) * (step + 1) / steps
            assert float(warm(step)) == pytest.approx(expected, rel=1e-5)
            assert float(constant(step)) == pytest.approx(expected, rel=1e-5)
    for after in (0, 1, 40, 100, 150):
        assert float(warm(steps + after)) == pytest.approx(float(cosine(after)), rel=1e-5, abs=1e-8)
        assert float(constant(steps + after)) == pytest.approx(rate, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-0.1, 5), "then: -0.1"),
        (("0.1", 5), "then: '0.1'"),
        ((0.1, 2.5), "warmup_steps: 2.5"),
        ((0.1, -1), "warmup_steps: -1"),
        ((0.1, 5, -1.0), "start: -1.0"),
    ],
)
def test_warm_up_refuses_what_is_no_rate_or_no_number_of_steps(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        WarmUp(*arguments)


def by_hand(w: np.ndarray, gradients: list[np.ndarray], rates: list[float], decay: float, adapts: bool) -> np.ndarray:
    """Algorithm 1 of arXiv:1708.03888 in float64, with momentum 0.9 and a trust coefficient of 0.01."""
    w, momentum = w.astype(np.float64), np.zeros(w.shape)
    for g, rate in zip(gradients, rates, strict=True):
        w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
        ratio = 0.01 * w_norm / (g_norm + decay * w_norm) if adapts and w_norm > 0 and g_norm > 0 else 1.0
        momentum = 0.9 * momentum + rate * ratio * (g + (decay * w if adapts else 0))
        w = w - momentum
    return w


def test_lars_is_the_papers_algorithm() -> None:
    """A matrix, one that begins at 0, a bias, a gradient of 0, one with rows only; in a tf.function, with warm-up."""
    random = np.random.default_rng(1)
    variables = [keras.Variable(random.normal(size=(6, 4)), name="kernel")]
    variables += [keras.Variable(np.zeros((5,)), name="scale"), keras.Variable(random.normal(size=4), name="bias")]
    variables += [keras.Variable(random.normal(size=(8, 2)), name="table")]
    variables += [keras.Variable(random.normal(size=3) * 1e-3, name="gamma_kernel")]
    starts = [v.numpy() for v in variables]
    gradients = [[random.normal(size=v.shape) for v in variables] for _ in range(4)]
    for step, (*_, table, _) in enumerate(gradients):
        table[[1, 2, 5]] = 0
        if step == 2:
            table[...] = 0
    optimizer = LARS(WarmUp(0.5, 3), weight_decay=0.1, trust_coefficient=0.01, epsilon=0.0)
    rates = [0.5 / 3, 1.0 / 3, 0.5, 0.5]
    optimizer.build(variables)

    @tf.function
    def update(dense: list[Any], rows: Any) -> None:
        table = tf.IndexedSlices(rows, tf.constant([0, 3, 4, 6, 7]), tf.constant([8, 2]))
        optimizer.apply([*dense[:3], table, dense[3]], variables)

    for k, w, b, table, g in gradients:
        update([tf.constant(a, tf.float32) for a in (k, w, b, g)], tf.constant(table[[0, 3, 4, 6, 7]], tf.float32))
    for number, variable in enumerate(variables):
        own = [step[number] for step in gradients]
        expected = by_hand(starts[number], own, rates, 0.1, adapts=variable.name != "bias")
        np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-5, atol=1e-6, err_msg=variable.name)
    assert [v.path.split("/")[-1] for v in optimizer.variables][1:] == [f"{v.name}_momentum" for v in variables]


def small_model(policy: str, optimizer: Any) -> Any:
    layers, dtype = keras.layers, {"dtype": policy}
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, **dtype), layers.BatchNormalization(**dtype), layers.Dense(1, **dtype)]
    )
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_lars_learns_under_each_policy_and_leaves_out_biases_and_normalisation(policy: str) -> None:
    optimizer: Any = LARS(WarmUp(0.02, 5), trust_coefficient=0.5)
    wrapped = keras.optimizers.LossScaleOptimizer(optimizer) if policy == "mixed_float16" else optimizer
    model = small_model(policy, wrapped)
    adapted = [optimizer.adapts(v) for v in model.trainable_variables]
    assert adapted == [True, False, False, False, True, False]
    x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    losses = [model.train_on_batch(x, x[:, :1]) for _ in range(30)]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.5 * losses[0]


def test_lars_and_warm_up_go_through_keras_files(tmp_path: Any) -> None:
    schedule = WarmUp(keras.optimizers.schedules.CosineDecay(0.1, 50), 7, 0.01)
    optimizer = LARS(schedule, momentum=0.8, weight_decay=0.1, exclude=["bias"], global_clipnorm=1.0)
    model = small_model("float32", optimizer)
    x = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    model.train_on_batch(x, x[:, :1])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == optimizer.get_config()
    for ours, theirs in zip(loaded.optimizer.variables, optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    for each in (model, loaded):
        each.train_on_batch(x, x[:, :1])
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), loaded.layers[0].kernel.numpy())
    for step in (0, 6, 7, 30):
        assert float(loaded.optimizer._learning_rate(step)) == float(schedule(step))


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("momentum", 1.0, "below 1"),
        ("weight_decay", -1.0, "0 or more"),
        ("epsilon", -1.0, "0 or more"),
        ("trust_coefficient", 0.0, "above 0"),
        ("exclude", ["("], "not a regular expression"),
    ],
)
def test_lars_refuses_numbers_out_of_range(argument: str, value: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"LARS: {argument}.* {said}"):
        LARS(0.1, **{argument: value})
