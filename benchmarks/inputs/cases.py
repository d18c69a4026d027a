"""The cases: every layout in every order, warm and cold, against the baselines that do the same work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from support import page_cache
from support.machine import one_core
from support.records import Record, Sample, records_of
from support.timing import Competitor, in_turn, interleave

from inputs import baselines, ours
from inputs.datasets import WHOLE_PASS_SECS, batches_of, drained
from inputs.files import LAYOUTS, Data

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
READER, DATASET, MEMCPY, TFRECORD, ZLIB, ONE_THREAD = "reader", "tf.data", "memcpy", "TFRecord", "zlib", "1 thread"


@dataclass(frozen=True)
class Case:
    """What was measured.

    Attributes:
        rows: Name of the row kind.
        way: Who delivered the rows: READER and DATASET are ours, the rest are baselines.
        threads: Of our reader; 0 where that does not apply.
        cores: "all" or "one". beside: In which other turns the case ran once more.
    """

    rows: str
    layout: str
    order: str
    way: str
    threads: int = 0
    cores: str = "all"
    cache: str = "warm"
    beside: str = ""

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}" if self.threads else ""
        cores = "on one core" if self.cores == "one" else ""
        cache = "cold" if self.cache == "cold" else ""
        return " ".join(
            filter(None, [self.order, self.layout, self.rows, self.way, threads, cores, cache, self.beside])
        )

    @property
    def is_ours(self) -> bool:
        return self.way in (READER, DATASET)


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
        yield from _measure(group, settings.rounds)


def _warm_on_one_core(data: Data, order: str, settings: Settings) -> Iterator[Record]:
    limit = settings.limit_secs
    own = Case(data.kind.name, "contiguous", order, "", cores="one")
    with one_core(), ExitStack() as stack:
        group = {
            replace(own, way="memcpy"): baselines.memcpy(data, limit),
            replace(own, way=DATASET, threads=1): _dataset(data, "contiguous", order, 1, limit, stack),
            replace(own, way="TFRecord"): baselines.tfrecord(data, order != "none", limit, stack),
        }
        yield from _measure(group, settings.rounds)


def measure_generators(data: Data, settings: Settings) -> Iterator[Record]:
    """from_generator; after all else, for TensorFlow changes malloc for the whole process then (M_TRIM_THRESHOLD)."""
    limit, threads = settings.limit_secs, settings.threads
    own = Case(data.kind.name, "contiguous", "none", DATASET, threads, beside="beside from_generator")
    with ExitStack() as stack:
        group = {own: _dataset(data, own.layout, own.order, threads, limit, stack)}
        for competitor in (
            baselines.generator(data, False, limit, stack),
            baselines.generator(data, True, limit / 5, stack),
        ):
            group[replace(own, way=competitor.name, threads=0, beside="")] = competitor
        yield from _measure(group, settings.rounds)


def measure_cold(data: Data, settings: Settings) -> Iterator[Record]:
    """Layouts in file order, and contiguous in all orders, with the page cache dropped before each run.

    Raises:
        CacheStaysError: It cannot be dropped here.
    """
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
        yield from _measure(group, settings.cold_rounds)


def _measure(group: dict[Case, Competitor], rounds: int) -> Iterator[Record]:
    """One interleaving: ours are compared with its baselines, several threads with one.

    Competitors are named by their cases here, so that one way with one and with two threads stay apart.
    """
    rates = interleave([replace(competitor, name=str(case)) for case, competitor in group.items()], rounds)
    values = {case: [rate / 1e9 for rate in rates[str(case)].per_sec] for case in group}
    for case, own in values.items():
        against = {other.way: found for other, found in values.items() if case.is_ours and not other.is_ours}
        alone = replace(case, threads=1)
        if case.threads > 1 and alone in values:
            against[ONE_THREAD] = values[alone]
        config = {**asdict(case), "cpu_secs_per_gb": 1e9 * float(np.median(rates[str(case)].cpu_secs))}
        yield from records_of(BENCHMARK, "GB/s", [Sample(str(case), own, against, config=config)])


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
