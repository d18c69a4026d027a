"""The cases: every layout in every order, warm and cold, against the baselines that do the same work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from support import page_cache
from support.machine import one_core
from support.timing import Competitor, in_turn, interleave

from inputs import baselines, ours
from inputs.datasets import WHOLE_PASS_SECS, batches_of, drained
from inputs.files import LAYOUTS, Data
from inputs.results import Case, Results

if TYPE_CHECKING:
    import tensorflow as tf

ORDERS = ("none", "block", "global")
COLD_CASES = (
    *((layout, "none") for layout in LAYOUTS),
    ("contiguous", "block"),
    ("contiguous", "global"),
    ("gzip", "global"),
)
READER, DATASET = "reader", "tf.data"


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


def measure_warm(data: Data, settings: Settings, results: Results) -> None:
    """All layouts and orders with the files in the page cache."""
    for layout in data.paths:
        for order in ORDERS:
            _warm(data, layout, order, settings, results)
    for order in ORDERS:
        _warm_on_one_core(data, order, settings, results)


def _warm(data: Data, layout: str, order: str, settings: Settings, results: Results) -> None:
    limit = settings.limit_secs
    own = Case(data.kind.name, layout, order, READER, threads=1)
    with ExitStack() as stack:
        group: dict[Case, Competitor] = {}

        def add(competitor: Competitor, threads: int = 0) -> None:
            group[replace(own, way=competitor.name, threads=threads)] = competitor

        add(baselines.memcpy(data, limit))
        add(_reader(data, layout, order, 1, limit, stack), threads=1)
        add(_dataset(data, layout, order, settings.threads, limit, stack), threads=settings.threads)
        if layout == "contiguous" and settings.threads > 1:
            add(_reader(data, layout, order, settings.threads, limit, stack), threads=settings.threads)
        if layout == "contiguous":
            add(baselines.tfrecord(data, order != "none", limit, stack))
        if order == "none":
            add(baselines.h5py_slices(data, layout, limit, stack))
        if order == "global":
            rows = ours.rows_of(data.paths[layout], data.kind.batch, order, data.steps)
            add(baselines.take(data, rows, limit))
            add(baselines.h5py_fancy(data, layout, rows, limit, stack))
        if (layout, order) == ("gzip", "none"):
            add(baselines.zlib_chunks(data, limit))
            add(_reader(data, layout, order, 2, limit, stack), threads=2)
            if settings.threads != 1:
                add(_dataset(data, layout, order, 1, limit, stack), threads=1)
        _measure(group, settings.rounds, results)


def _warm_on_one_core(data: Data, order: str, settings: Settings, results: Results) -> None:
    limit = settings.limit_secs
    own = Case(data.kind.name, "contiguous", order, "", cores="one")
    with one_core(), ExitStack() as stack:
        group = {
            replace(own, way="memcpy"): baselines.memcpy(data, limit),
            replace(own, way=DATASET, threads=1): _dataset(data, "contiguous", order, 1, limit, stack),
            replace(own, way="TFRecord"): baselines.tfrecord(data, order != "none", limit, stack),
        }
        _measure(group, settings.rounds, results)


def measure_generators(data: Data, settings: Settings, results: Results) -> None:
    """from_generator; after all else, for TensorFlow changes malloc for the whole process then (M_TRIM_THRESHOLD)."""
    limit, threads = settings.limit_secs, settings.threads
    own = Case(data.kind.name, "contiguous", "none", DATASET, threads)
    with ExitStack() as stack:
        group = {own: _dataset(data, own.layout, own.order, threads, limit, stack)}
        for competitor in (
            baselines.memcpy(data, limit),
            baselines.generator(data, False, limit, stack),
            baselines.generator(data, True, limit / 5, stack),
        ):
            group[replace(own, way=competitor.name, threads=0)] = competitor
        _measure(group, settings.rounds, results)


def measure_cold(data: Data, settings: Settings, results: Results) -> None:
    """Layouts in file order, and contiguous in all orders, with the page cache dropped before each run."""
    for layout, order in COLD_CASES[:1] if settings.quick else COLD_CASES:
        if layout not in data.paths:
            continue
        own = Case(data.kind.name, layout, order, READER, threads=1, cache="cold")
        plain = baselines.file_reads(data, layout, settings.limit_secs)
        group = {
            replace(own, way=plain.name, threads=0): _dropped(plain, data.paths[layout]),
            own: _cold_reader(data, layout, order, settings.limit_secs),
            replace(own, way=DATASET, threads=settings.threads): _cold_dataset(data, layout, order, settings),
        }
        try:
            _measure(group, settings.cold_rounds, results)
        except page_cache.CacheStaysError as error:
            results.notes.append(f"Cold page cache, {data.kind.name}: not measured: {error}.")
            return


def _measure(group: dict[Case, Competitor], rounds: int, results: Results) -> None:
    """Competitors are named by their cases here, so that one way with one and with two threads stay apart."""
    rates = interleave([replace(competitor, name=str(case)) for case, competitor in group.items()], rounds)
    results.add({case: rates[str(case)] for case in group})


def _reader(data: Data, layout: str, order: str, threads: int, limit_secs: float, stack: ExitStack) -> Competitor:
    """Reader.read, step after step, with a reader that stays open."""
    read = stack.enter_context(ours.reader(data.paths[layout], data.kind.batch, order, threads))
    steps = count()
    first = ours.rows_of(data.paths[layout], data.kind.batch, order, 1)[0]
    _check(data, first, read(next(steps)))

    def deliver(_: int) -> int:
        read(next(steps))
        return data.kind.batch_bytes

    in_turn(deliver, data.steps, WHOLE_PASS_SECS)()
    return drained(READER, deliver, data, limit_secs)


def _dataset(data: Data, layout: str, order: str, threads: int, limit_secs: float, stack: ExitStack) -> Competitor:
    """Batches of our training pipeline, which stays open."""
    training = stack.enter_context(ours.training(data.paths[layout], data.kind.batch, order, threads))
    first = ours.rows_of(data.paths[layout], data.kind.batch, order, 1)[0]

    def look_at_first(batch: Sequence[tf.Tensor]) -> None:
        _check(data, first, [column.numpy() for column in batch])

    return batches_of(DATASET, training.dataset, data, limit_secs, stack, look_at_first, whole_pass_first=True)


def _check(data: Data, rows: np.ndarray, columns: Sequence[np.ndarray]) -> None:
    images, labels = columns
    if not (np.array_equal(images, data.images[rows]) and np.array_equal(labels, data.labels[rows])):
        raise RuntimeError(f"wrong rows were read ({data.kind.name}): nothing here is worth measuring")


def _dropped(competitor: Competitor, paths: Sequence[str]) -> Competitor:
    def prepare() -> None:
        competitor.prepare()
        page_cache.drop(paths)

    return replace(competitor, prepare=prepare)


def _cold_reader(data: Data, layout: str, order: str, limit_secs: float) -> Competitor:
    """A new reader for each run: pages that a reader has mapped cannot be dropped."""
    opened = ExitStack()
    reads: list[ours.Read] = []

    def prepare() -> None:
        reads[:] = [opened.enter_context(ours.reader(data.paths[layout], data.kind.batch, order, threads=1))]

    def deliver(step: int) -> int:
        reads[0](step)
        return data.kind.batch_bytes

    def run() -> int:
        return in_turn(deliver, data.steps, limit_secs)()

    return _dropped(Competitor(READER, run, prepare, opened.close), data.paths[layout])


def _cold_dataset(data: Data, layout: str, order: str, settings: Settings) -> Competitor:
    """A pipeline opened anew for each run; its first batch is timed, too."""
    opened = ExitStack()
    datasets: list[Iterable[object]] = []

    def prepare() -> None:
        training = ours.training(data.paths[layout], data.kind.batch, order, settings.threads)
        datasets[:] = [opened.enter_context(training).dataset]

    def run() -> int:
        batches = iter(datasets[0])

        def deliver(_: int) -> int:
            next(batches)
            return data.kind.batch_bytes

        return in_turn(deliver, data.steps, settings.limit_secs)()

    return _dropped(Competitor(DATASET, run, prepare, opened.close), data.paths[layout])
