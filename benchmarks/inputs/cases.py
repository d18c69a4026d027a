"""The cases: every layout in every order, warm and cold, against the baselines that do the same work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

import numpy as np
from support.machine import one_core
from support.records import Record, Sample, records_of
from support.timing import Competitor, interleave

from inputs import contestants
from inputs.contestants import DATASET, MEMCPY, READER, TFRECORD
from inputs.data import LAYOUTS, Data

BENCHMARK = "input_pipeline"
ORDERS = ("none", "block", "global")
COLD_CASES = (
    *((layout, "none") for layout in LAYOUTS),
    ("contiguous", "block"),
    ("contiguous", "global"),
    ("gzip", "global"),
)
ONE_THREAD = "1 thread"


@dataclass(frozen=True)
class Case:
    """What was measured.

    Attributes:
        rows: Name of the row kind.
        way: Who delivered the rows: READER and DATASET are ours, the rest are contestants.
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

        add(contestants.memcpy(data, limit))
        add(contestants.reader(data, layout, order, 1, limit, stack), threads=1)
        add(contestants.dataset(data, layout, order, settings.threads, limit, stack), threads=settings.threads)
        if layout == "contiguous" and settings.threads > 1:
            add(contestants.reader(data, layout, order, settings.threads, limit, stack), threads=settings.threads)
        if layout == "contiguous":
            add(contestants.tfrecord(data, order != "none", limit, stack))
        if order == "none":
            add(contestants.h5py_slices(data, layout, limit, stack))
        if order == "global":
            rows = contestants.rows_of(data, layout, order, data.steps)
            add(contestants.take(data, rows, limit))
            add(contestants.h5py_fancy(data, layout, rows, limit, stack))
        if (layout, order) == ("gzip", "none"):
            add(contestants.zlib_chunks(data, limit))
            add(contestants.reader(data, layout, order, 2, limit, stack), threads=2)
            if settings.threads != 1:
                add(contestants.dataset(data, layout, order, 1, limit, stack), threads=1)
        yield from _measure(group, settings.rounds)


def _warm_on_one_core(data: Data, order: str, settings: Settings) -> Iterator[Record]:
    limit = settings.limit_secs
    own = Case(data.kind.name, "contiguous", order, "", cores="one")
    with one_core(), ExitStack() as stack:
        group = {
            replace(own, way=MEMCPY): contestants.memcpy(data, limit),
            replace(own, way=DATASET, threads=1): contestants.dataset(data, "contiguous", order, 1, limit, stack),
            replace(own, way=TFRECORD): contestants.tfrecord(data, order != "none", limit, stack),
        }
        yield from _measure(group, settings.rounds)


def measure_generators(data: Data, settings: Settings) -> Iterator[Record]:
    """from_generator; after all else, for TensorFlow changes malloc for the whole process then (M_TRIM_THRESHOLD)."""
    limit, threads = settings.limit_secs, settings.threads
    own = Case(data.kind.name, "contiguous", "none", DATASET, threads, beside="beside from_generator")
    with ExitStack() as stack:
        group = {own: contestants.dataset(data, own.layout, own.order, threads, limit, stack)}
        for competitor in (
            contestants.generator(data, False, limit, stack),
            contestants.generator(data, True, limit / 5, stack),
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
        plain = contestants.file_reads(data, layout, settings.limit_secs)
        group = {
            replace(own, way=plain.name, threads=0): contestants.dropped(plain, data, layout),
            own: contestants.cold_reader(data, layout, order, settings.limit_secs),
            replace(own, way=DATASET, threads=settings.threads): contestants.cold_dataset(
                data, layout, order, settings.threads, settings.limit_secs
            ),
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
