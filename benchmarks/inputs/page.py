"""The report page: its words, charts and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from support import page_cache
from support.charts import ALSO_OUR_COLOUR, OTHER_COLOUR, OUR_COLOUR, TARGET_COLOUR, Bar, bars, legend
from support.report import Report, Section, Table

from inputs.cases import COLD_CASES, DATASET, ORDERS, READER, Settings
from inputs.files import LAYOUTS
from inputs.results import Case, Measured, Results
from inputs.targets import ALL_ROWS, MEMCPY_RATIO, targets

OTHERS = {
    "none": ("h5py slices", "from_generator by batch", "from_generator by row", "TFRecord"),
    "block": ("TFRecord",),
    "global": ("np.take", "h5py fancy index", "TFRecord"),
}
TITLES = {
    "none": "In file order (shuffle: none)",
    "block": "Shuffled in blocks (shuffle: block)",
    "global": "Shuffled over all rows (shuffle: global)",
}
ABOUT = {
    "none": "TFRecord has no shuffle buffer here. The h5py and from_generator bars read the contiguous files.",
    "block": "TFRecord is read through a shuffle buffer of 10 % of the rows.",
    "global": "np.take gathers the same random rows from an array in memory: what the memory itself allows. The h5py "
    "bar reads the contiguous files; TFRecord has a shuffle buffer of 10 % of the rows, so it mixes less. Chunks stay "
    "decoded in memory here, so after the first epoch compressed rows are only gathered.",
}


@dataclass(frozen=True)
class Tables:
    """Makes the parts of the page from what was measured."""

    results: Results
    settings: Settings

    def case(self, rows: str, layout: str, order: str, way: str) -> Case:
        threads = {READER: 1, DATASET: self.settings.threads}.get(way, 0)
        return Case(rows, layout, order, way, threads)

    def over_memcpy(self, case: Case) -> float | None:
        found = self.results.get(case)
        return found.over_memcpy if found else None

    def order_section(self, order: str) -> Section:
        charts = [self._chart(rows, order) for rows in ALL_ROWS]
        colours = [(OUR_COLOUR, "reader"), (ALSO_OUR_COLOUR, "tf.data"), (OTHER_COLOUR, "baselines")]
        words = legend([*colours, (TARGET_COLOUR, "target (contiguous files)")])
        text = (f"Bytes a second as a share of memcpy, which is 1. {ABOUT[order]}",)
        return Section(TITLES[order], text, charts, words, [self._table(order)])

    def _chart(self, rows: str, order: str) -> str:
        entries = []
        for layout in LAYOUTS:
            for way, colour in ((READER, OUR_COLOUR), (DATASET, ALSO_OUR_COLOUR)):
                goal = layout == "contiguous" and (order != "global" or rows == "3 KB")
                value = self.over_memcpy(self.case(rows, layout, order, way))
                target = MEMCPY_RATIO[order] if goal else None
                entries.append(Bar(f"{layout}, {way}", value, colour, target, gap_above=way == READER))
        for i, way in enumerate(OTHERS[order]):
            value = self.over_memcpy(self.case(rows, "contiguous", order, way))
            entries.append(Bar(way, value, OTHER_COLOUR, gap_above=i == 0))
        return bars(f"Rows of {rows}", entries, max(1.0, *(entry.value or 0 for entry in entries)))

    def _table(self, order: str) -> Table:
        rows = []
        for name in ALL_ROWS:
            for layout in LAYOUTS:
                cases = [self.case(name, layout, order, way) for way in ("memcpy", READER, DATASET, *OTHERS[order])]
                for case in cases:
                    found = self.results.get(case)
                    if found:
                        rows.append((f"{name}, {layout}", case.way, *self._numbers(found)))
        header = ("Rows", "Way", "GB/s", "slowest to fastest", "x memcpy", "CPU s a GB")
        return Table(header, rows, names=2, fold="All numbers, every layout")

    def _numbers(self, found: Measured) -> tuple[str, ...]:
        low, high = found.rates.spread
        share = f"{found.over_memcpy:.3g}" if found.over_memcpy is not None else ""
        return f"{found.gb_per_sec:.3g}", f"{low / 1e9:.3g} to {high / 1e9:.3g}", share, f"{found.cpu_secs_per_gb:.3g}"

    def one_core(self) -> Section:
        rows = []
        for name in ALL_ROWS:
            for order in ORDERS:
                case = Case(name, "contiguous", order, DATASET, threads=1, cores="one")
                own, other = self.results.get(case), self.results.get(replace(case, way="TFRecord", threads=0))
                if own and other:
                    ratio = f"{own.gb_per_sec / other.gb_per_sec:.3g}"
                    rows.append((name, order, f"{own.gb_per_sec:.3g}", f"{other.gb_per_sec:.3g}", ratio))
        header = ("Rows", "shuffle", "tf.data GB/s", "TFRecord GB/s", "tf.data / TFRecord")
        text = "All threads of the process are kept on one core, ours too, and ours has one reader thread."
        return Section("Against TFRecord on one core", (text,), tables=[Table(header, rows, names=2)])

    def gzip(self) -> Section:
        ways = (("zlib", 0), (READER, 1), (READER, 2), (DATASET, 1), (DATASET, 2))
        rows = []
        for name in ALL_ROWS:
            found = [self.results.get(Case(name, "gzip", "none", way, threads)) for way, threads in ways]
            rows.append((name, *(f"{one.gb_per_sec:.3g}" if one else "" for one in found)))
        header = ("Rows", "zlib", *(f"{way}, {n} thread{'s' * (n > 1)}" for way, n in ways[1:]))
        text = (
            "GB/s of row bytes, in file order. zlib is zlib.decompress of the same chunks, lying in memory, one after "
            "the other in one thread."
        )
        return Section("gzip", (text,), tables=[Table(header, rows)])

    def cold(self) -> Section:
        rows = []
        for name in ALL_ROWS:
            for layout, order in COLD_CASES:
                case = Case(name, layout, order, READER, threads=1, cache="cold")
                ways = (("file reads", 0), (READER, 1), (DATASET, self.settings.threads))
                found = [self.results.get(replace(case, way=way, threads=threads)) for way, threads in ways]
                if all(found):
                    rows.append((f"{name}, {layout}", order, *(f"{one.gb_per_sec:.3g}" for one in found if one)))
        text = (
            f"Dropped before each run by {page_cache.METHOD}. GB/s; file reads are the stored bytes of the same files "
            "in blocks of 1 MB, the others count row bytes, so compressed files can pass them. The disk of a virtual "
            "machine may have a cache of its own that nobody here can drop.",
            *(note for note in self.results.notes if note.startswith("Cold")),
        )
        header = ("Rows", "shuffle", "file reads", READER, DATASET)
        return Section("Cold page cache", text, tables=[Table(header, rows, names=2)] if rows else [])

    def step(self) -> Section:
        rows = [
            (one.order, f"{one.wait_share:.2%}", f"{1000 * one.step_secs:.3f}", f"{1000 * one.resident_step_secs:.3f}")
            for one in self.results.steps
        ]
        text = (
            "A Keras model trains on contiguous rows of 3 KB, in turn with the same steps on one batch that stays in "
            "memory. Wait is what the training loop's own feed (hpc_train.data.loading.feed) counts.",
            *(note for note in self.results.notes if note.startswith("Training")),
        )
        header = ("shuffle", "wait, share of step", "step with input, ms", "step without input, ms")
        return Section("Fed to a training step", text, tables=[Table(header, rows)])


def make_page(
    results: Results, settings: Settings, facts: Mapping[str, object], files: Sequence[Sequence[str]]
) -> Report:
    """The whole report. `files`: one row of text for each row kind, as `FILES_HEADER` names them."""
    tables = Tables(results, settings)
    return Report(
        "Input pipeline: HDF5 against memcpy, TFRecord and h5py",
        list(_summary(settings)),
        targets(results, settings),
        [
            *(tables.order_section(order) for order in ORDERS),
            tables.one_core(),
            tables.gzip(),
            tables.step(),
            tables.cold(),
            Section("Data", _data_words(results), tables=[Table(FILES_HEADER, files, names=2)]),
        ],
        facts,
    )


FILES_HEADER = ("Rows", "image", "rows", "batch", "MB", *(f"{layout}, times smaller" for layout in LAYOUTS[2:]))


def _summary(settings: Settings) -> Iterator[str]:
    if settings.quick:
        yield "A quick run, smaller than the buffers: it tries the benchmark, and none of its figures mean anything."
    yield (
        "How fast hpc_train delivers batches from HDF5 shards. “reader” is its reading into numpy arrays, "
        "without TensorFlow; “tf.data” is batches coming out of the training dataset, shuffling included, taken the "
        "way TFRecord's are. Both are checked against each number to reach; a target is reached only where all its "
        "parts are."
    )
    yield (
        "memcpy is np.copyto, batch by batch, from one large array into one batch buffer, both aligned to 64 bytes, on "
        "one core. Every case ran in turn with its baselines (A B B A) after a warm-up, "
        f"{2 * settings.rounds} times, each one pass over the data or {settings.limit_secs:g} s of it; medians are "
        "quoted. Bytes are those of the rows, image and int64 label. The page cache is warm except where it says cold."
    )


def _data_words(results: Results) -> Sequence[str]:
    words = (
        "Made images (random colours on a coarse lattice, interpolated, partly saturated, with noise), tuned so that "
        "gzip shrinks them about as it does Fashion-MNIST (1.76 times, 784 B), CIFAR-10 (1.1, 3 KB) and photographs "
        "(1.4 to 1.5, 150 KB). Four shards; chunks of about 256 KB in whole rows; gzip level 4; blosc is lz4 level 5."
    )
    return (words, *(note for note in results.notes if not note.startswith(("Cold", "Training"))))
