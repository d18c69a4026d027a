"""A real training step of 5 ms, fed with rows of 3 KB: how much of it is spent waiting for input."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from support.records import Record, Sample, records_of
from support.timing import Competitor, interleave

from hpc_train.data.loading.feed import Feed
from inputs.cases import BENCHMARK, ORDERS, Settings
from inputs.contestants import training
from inputs.data import Data

if TYPE_CHECKING:
    import tensorflow as tf

STEP_SECS = 0.005
TOLERANCE = 0.03
Step = Callable[[Any], "tf.Tensor"]


def measure_step(data: Data, settings: Settings) -> Iterator[Record]:
    """Trains on contiguous shards in each order, in turn with the same step on a batch that stays in memory."""
    import tensorflow as tf

    rows = slice(0, data.kind.batch)
    resident = (tf.constant(data.images[rows]), tf.constant(data.labels[rows]))
    step, width = calibrated_step(resident)
    for order in ORDERS:
        shares, fed, not_fed = _fed(step, resident, data, order, settings)
        name, config = f"{order} training step", {"order": order, "width": width}
        yield from records_of(
            BENCHMARK, "% of step", [Sample(f"{name}, wait for input", shares, config={**config, "way": "wait"})]
        )
        against = {"same step on a batch in memory": not_fed}
        yield from records_of(
            BENCHMARK, "ms", [Sample(f"{name}, time", fed, against, config={**config, "way": "time"})]
        )


def calibrated_step(batch: Any) -> tuple[Step, int]:
    """A step whose hidden layer is just so wide that it takes 5 ms on one core; and that width."""
    width = 64
    for _ in range(6):
        step = _make_step(batch, width)
        secs = _step_secs(step, batch)
        if abs(secs / STEP_SECS - 1) < TOLERANCE:
            break
        width = max(8, round(width * STEP_SECS / secs))
    return step, width


def _make_step(batch: Any, width: int) -> Step:
    import keras
    import tensorflow as tf

    model = keras.Sequential(
        [
            keras.Input(batch[0].shape[1:], dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return lambda batch: step(*batch)


def _step_secs(step: Step, batch: Any, steps: int = 40) -> float:
    for _ in range(5):
        step(batch).numpy()
    start = time.perf_counter()
    for _ in range(steps):
        step(batch).numpy()
    return (time.perf_counter() - start) / steps


def _fed(
    step: Step, resident: Any, data: Data, order: str, settings: Settings
) -> tuple[list[float], list[float], list[float]]:
    """Percent of a step that is waiting, milliseconds of a step, and of one on the resident batch, by repeat."""
    shares: list[float] = []
    with training(data, "contiguous", order, settings.threads) as opened, Feed(opened.dataset) as feed:

        def fed() -> int:
            before, start = feed.waited_secs, time.perf_counter()
            for _ in range(settings.steps):
                step(next(feed)).numpy()
            shares.append((feed.waited_secs - before) / (time.perf_counter() - start))
            return settings.steps

        def not_fed() -> int:
            for _ in range(settings.steps):
                step(resident).numpy()
            return settings.steps

        rates = interleave([Competitor("fed", fed), Competitor("resident", not_fed)], settings.rounds)
    fed_ms, resident_ms = ([1e3 * secs for secs in rates[name].secs] for name in ("fed", "resident"))
    return [100 * share for share in shares[1:]], fed_ms, resident_ms  # the first run warmed up
