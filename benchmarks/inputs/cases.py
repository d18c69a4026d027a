"""The cases: every layout in every order, warm and cold, against the baselines that do the same work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from support.machine import one_core
from support.records import Record, Sample, records_of
from support.timing import Competitor, interleave

from hpc_train.data.loading.feed import Feed
from inputs.contestants import (
    CONTESTANTS,
    DATASET,
    FANCY,
    FILE_READS,
    GENERATOR_BATCH,
    GENERATOR_ROW,
    MEMCPY,
    READER,
    SLICES,
    TAKE,
    TFRECORD,
    ZLIB,
    Case,
    Setup,
    dropped,
    ours_cold,
)
from inputs.data import LAYOUTS, Data

if TYPE_CHECKING:
    import tensorflow as tf


BENCHMARK = "input_pipeline"
ORDERS = ("none", "block", "global")
COLD_CASES = (
    *((layout, "none") for layout in LAYOUTS),
    ("contiguous", "block"),
    ("contiguous", "global"),
    ("gzip", "global"),
)
ONE_THREAD = "1 thread"
STEP_SECS = 0.005
TOLERANCE = 0.03
Step = Callable[[Any], "tf.Tensor"]


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        rounds, cold_rounds: A B B A rounds; each gives two repeats.
        limit_secs: A run ends after one pass over the data, or after so long.
        threads: Of our tf.data pipeline.
        steps: Training steps a run.
        quick: Small batches, and one cold case only.
    """

    megabytes: float
    rounds: int
    cold_rounds: int
    limit_secs: float
    threads: int
    steps: int
    quick: bool = False


def measure_warm(data: Data, settings: Settings) -> Iterator[Record]:
    """All layouts and orders with the files in the page cache."""
    for layout in data.paths:
        for order in ORDERS:
            yield from _warm(data, layout, order, settings)
    for order in ORDERS:
        yield from _warm_on_one_core(data, order, settings)


def _warm(data: Data, layout: str, order: str, settings: Settings) -> Iterator[Record]:
    threads = settings.threads
    ways = [(MEMCPY, 0), (READER, 1), (DATASET, threads)]
    if layout == "contiguous":
        ways += [(READER, threads), (TFRECORD, 0)]
    if order == "none":
        ways.append((SLICES, 0))
    if order == "global":
        ways += [(TAKE, 0), (FANCY, 0)]
    if (layout, order) == ("gzip", "none"):
        ways += [(ZLIB, 0), (READER, 2), (DATASET, 1)]
    own = Case(data.kind.name, layout, order, READER)
    cases = [replace(own, way=way, threads=count) for way, count in dict.fromkeys(ways)]
    yield from _measure(cases, data, settings.limit_secs, settings.rounds)


def _warm_on_one_core(data: Data, order: str, settings: Settings) -> Iterator[Record]:
    own = Case(data.kind.name, "contiguous", order, MEMCPY, cores="one")
    cases = [own, replace(own, way=DATASET, threads=1), replace(own, way=TFRECORD)]
    with one_core():
        yield from _measure(cases, data, settings.limit_secs, settings.rounds)


def measure_generators(data: Data, settings: Settings) -> Iterator[Record]:
    """from_generator; after all else, for TensorFlow changes malloc for the whole process then (M_TRIM_THRESHOLD)."""
    own = Case(data.kind.name, "contiguous", "none", DATASET, settings.threads, beside="beside from_generator")
    others = [replace(own, way=way, threads=0, beside="") for way in (GENERATOR_BATCH, GENERATOR_ROW)]
    yield from _measure([own, *others], data, settings.limit_secs, settings.rounds)


def measure_cold(data: Data, settings: Settings) -> Iterator[Record]:
    """Layouts in file order, and contiguous in all orders, with the page cache dropped before each run.

    Raises:
        CacheStaysError: It cannot be dropped here.
    """
    for layout, order in COLD_CASES[:1] if settings.quick else COLD_CASES:
        if layout not in data.paths:
            continue
        own = Case(data.kind.name, layout, order, READER, threads=1, cache="cold")
        cases = [replace(own, way=FILE_READS, threads=0), own, replace(own, way=DATASET, threads=settings.threads)]
        yield from _measure(cases, data, settings.limit_secs, settings.cold_rounds)


def _measure(cases: Sequence[Case], data: Data, limit_secs: float, rounds: int) -> Iterator[Record]:
    """One interleaving: ours are compared with the others, several threads with one."""
    with ExitStack() as stack:
        rates = interleave([_competitor(Setup(case, data, limit_secs, stack)) for case in cases], rounds)
    values = {case: [rate / 1e9 for rate in rates[str(case)].per_sec] for case in cases}
    for case, own in values.items():
        against = {other.way: found for other, found in values.items() if case.is_ours and not other.is_ours}
        alone = replace(case, threads=1)
        if case.threads > 1 and alone in values:
            against[ONE_THREAD] = values[alone]
        config = {**asdict(case), "cpu_secs_per_gb": 1e9 * float(np.median(rates[str(case)].cpu_secs))}
        yield from records_of(BENCHMARK, "GB/s", [Sample(str(case), own, against, config=config)])


def _competitor(setup: Setup) -> Competitor:
    if setup.case.cache == "warm":
        return CONTESTANTS[setup.case.way](setup)
    cold = ours_cold(setup) if setup.case.is_ours else CONTESTANTS[setup.case.way](setup)
    return dropped(cold, setup.data.paths[setup.case.layout])


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
    case = Case(data.kind.name, "contiguous", order, DATASET, settings.threads)
    with ExitStack() as stack:
        opened = stack.enter_context(Setup(case, data, settings.limit_secs, stack).training())
        feed = stack.enter_context(Feed(opened.dataset))

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
