"""Texts and rows of different lengths: how fast they come out of HDF5 shards, and how much of a batch is padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from support.drawing import Bar, Bars
from support.page import Report, Section, numbers
from support.records import Found, Record, Sample, records_of
from support.timing import Competitor, in_turn, interleave

from hpc_train import HDF5Input
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.loading.batch_source import ReadResources
from hpc_train.data.loading.tf_dataset import InputContext, open_training
from hpc_train.data.writing.writer import write_shards

BENCHMARK = "texts"
ORDERS = ("none", "block", "global")
SHARDS, BATCH, SEED = 4, 512, 7
OURS, THEIRS, FIXED = "shards of hpc-train", "HDF5's own type", "numbers of 100 bytes"
SLICES, FANCY, TFRECORD = "h5py slices", "h5py fancy index", "TFRecord"
TEXTS, SEQUENCES = "texts", "sequences"
PADDED_BATCH, DRAWN = 64, 400
"""Rows of a batch, and batches, by which padding is measured."""
NAMES = {"Rows": "kind", "Order": "order", "Way": "way"}
SUMMARY = (
    "How fast texts (50 to 150 bytes of UTF-8) and sequences (int32, 1 to 49 numbers) come out of the training "
    "dataset, shuffling and padding included, in batches of 512 rows.",
    "Numbers of 100 bytes a row, uint8, are read beside them in the same way. h5py reads its own type into objects, "
    "and makes no tensors. TFRecord parses and, for sequences, pads, on one thread, with a shuffle buffer of 10 % of "
    "the rows. Rows have an int64 label as well. All took turns (A B B A) after a warm-up; medians of millions of "
    "rows a second.",
)


@dataclass(frozen=True)
class Settings:
    """How much is measured: rows, A B B A rounds, at most so many seconds a run, threads of ours."""

    rows: int
    rounds: int
    limit_secs: float
    threads: int


class Rows:
    """Rows of one kind, in memory and in files of `folder`."""

    def __init__(self, kind: str, count: int, folder: Path) -> None:
        self.kind, self.folder, random = kind, folder, np.random.default_rng(SEED)
        if kind == TEXTS:
            letters = np.array(list("abcdefghijklmnopqrstuvwxyz      äß"))
            lengths = random.integers(48, 140, count)
            chosen = letters[random.integers(0, len(letters), (count, 140))]
            self.rows: list[Any] = ["".join(row[:n]) for row, n in zip(chosen, lengths, strict=True)]
        else:
            self.rows = [random.integers(1, 9, n, dtype=np.int32) for n in random.integers(1, 50, count)]
        self.labels = random.integers(0, 2, count)
        self.fixed = random.integers(0, 9, (count, 100), dtype=np.uint8)
        write_shards(folder / "ours", {"row": self.rows, "y": self.labels}, shards=SHARDS)
        write_shards(folder / "fixed", {"row": self.fixed, "y": self.labels}, shards=SHARDS)
        dtype = h5py.string_dtype() if kind == TEXTS else h5py.vlen_dtype(np.int32)
        for number, part in enumerate(np.array_split(np.arange(count), SHARDS)):
            with h5py.File(folder / f"theirs-{number}.h5", "w") as file:
                column = file.create_dataset("row", (len(part),), dtype)
                for at, row in enumerate(part):
                    column[at] = self.rows[row]
                file["y"] = self.labels[part]

    @cached_property
    def tfrecords(self) -> list[str]:
        """The same rows as TFRecord files."""
        import tensorflow as tf

        paths = [str(self.folder / f"{number}.tfrecord") for number in range(SHARDS)]
        for path, part in zip(paths, np.array_split(np.arange(len(self.rows)), SHARDS), strict=True):
            with tf.io.TFRecordWriter(path) as writer:
                for row in part:
                    own = self.rows[row]
                    feature = (
                        tf.train.Feature(bytes_list=tf.train.BytesList(value=[own.encode()]))
                        if isinstance(own, str)
                        else tf.train.Feature(int64_list=tf.train.Int64List(value=own.tolist()))
                    )
                    label = tf.train.Feature(int64_list=tf.train.Int64List(value=[self.labels[row]]))
                    features = tf.train.Features(feature={"row": feature, "y": label})
                    writer.write(tf.train.Example(features=features).SerializeToString())
        return paths

    def input(self, name: str, order: str, batch: int = BATCH, bucket_by: str | None = None) -> HDF5Input:
        """Of the shards whose names begin with `name`."""
        padded = self.kind == SEQUENCES and name != "fixed"
        return HDF5Input(
            sorted(str(path) for path in self.folder.glob(f"{name}-*.h5")),
            features="row",
            label="y",
            batch_size=batch,
            shuffle=order,
            seed=SEED,
            pad={"row": 0} if padded else {},
            bucket_by=bucket_by,
        )


def measure(rows: Rows, settings: Settings) -> Iterator[Record]:
    """Every way in every order, in turns."""
    for order in ORDERS:
        ways: dict[str, Callable[[ExitStack], Callable[[], object]]] = {
            OURS: lambda stack, order=order: _ours(rows, "ours", order, settings.threads, stack),
            THEIRS: lambda stack, order=order: _ours(rows, "theirs", order, settings.threads, stack),
            FIXED: lambda stack, order=order: _ours(rows, "fixed", order, settings.threads, stack),
            TFRECORD: lambda stack, order=order: _tfrecord(rows, order),
        }
        if order != "block":
            ways[SLICES if order == "none" else FANCY] = lambda stack, order=order: _h5py(rows, order, stack)
        with ExitStack() as stack:
            competitors = [_competitor(way, begin(stack), settings) for way, begin in ways.items()]
            rates = interleave(competitors, settings.rounds)
        millions = {way: [rate / 1e6 for rate in found.per_sec] for way, found in rates.items()}
        for way, own in millions.items():
            against = {
                name: found for name, found in millions.items() if way in (OURS, THEIRS) and name not in (way, FIXED)
            }
            config = {"kind": rows.kind, "order": order, "way": way}
            case = f"{rows.kind}, {order}, {way}"
            yield from records_of(BENCHMARK, "M rows/s", [Sample(case, own, against, config=config)])


def padding(rows: Rows) -> Iterator[Record]:
    """How much of the batches of sequences is padding, with and without buckets; nothing of it is timed."""
    for way, bucket_by in (("shuffle: block", None), ("bucket_by", "row")):
        with ExitStack() as stack:
            source = rows.input("ours", "block", PADDED_BATCH, bucket_by)
            opened = stack.enter_context(open_training(source, find_shards(source), InputContext(0, 1, SEED)))
            values = filled = 0
            for batch in opened.dataset.take(DRAWN):
                tokens = np.asarray(batch[0])
                values, filled = values + tokens.size, filled + int((tokens == 0).sum())
        config = {"kind": rows.kind, "order": "block", "way": way, "padding": True}
        yield from records_of(
            BENCHMARK, "% of values", [Sample(f"padding, {way}", [100 * filled / values], config=config)]
        )


def _competitor(way: str, take: Callable[[], object], settings: Settings) -> Competitor:
    """What was read ahead while others ran is taken before: else batches would come for free."""

    def deliver(_: int) -> int:
        take()
        return BATCH

    steps = settings.rows // BATCH
    run = in_turn(deliver, steps, settings.limit_secs)
    return Competitor(way, run, in_turn(deliver, steps, settings.limit_secs / 2))


def _ours(rows: Rows, name: str, order: str, threads: int, stack: ExitStack) -> Callable[[], object]:
    source = rows.input(name, order)
    resources = ReadResources(threads)
    opened = stack.enter_context(
        open_training(source, find_shards(source), InputContext(0, 1, SEED), resources=resources)
    )
    batches = iter(opened.dataset)
    return lambda: next(batches)


def _h5py(rows: Rows, order: str, stack: ExitStack) -> Callable[[], object]:
    files = [stack.enter_context(h5py.File(path)) for path in sorted(rows.folder.glob("theirs-*.h5"))]
    columns = [(file["row"], file["y"]) for file in files]
    each, random = len(columns[0][0]), np.random.default_rng(SEED)
    firsts = cycle([(of_file, first) for of_file in columns for first in range(0, each - BATCH, BATCH)])

    def take() -> object:
        of_file, first = next(firsts)
        at: Any = slice(first, first + BATCH)
        if order != "none":
            at = np.sort(random.choice(each, BATCH, replace=False))
        return [column[at] for column in of_file]

    return take


def _tfrecord(rows: Rows, order: str) -> Callable[[], object]:
    import tensorflow as tf

    texts = rows.kind == TEXTS
    schema = {
        "row": tf.io.FixedLenFeature([], tf.string) if texts else tf.io.RaggedFeature(tf.int64),
        "y": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(serialized: Any) -> Any:
        found = tf.io.parse_example(serialized, schema)
        row = found["row"] if texts else tf.cast(found["row"].to_tensor(), tf.int32)
        return row, found["y"]

    dataset = tf.data.TFRecordDataset(rows.tfrecords)
    if order != "none":
        dataset = dataset.shuffle(len(rows.rows) // 10, seed=1)
    options = tf.data.Options()
    options.threading.private_threadpool_size = options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    batches = iter(dataset.repeat().batch(BATCH, drop_remainder=True).map(parse).with_options(options))
    return lambda: next(batches)


def make_page(found: Found) -> Report:
    """The whole report. There is no number to reach."""
    sections = []
    for kind in found.each("kind"):
        timed = Found(one for one in found.where(kind=kind) if "padding" not in one.config)
        charts = [
            Bars(
                f"{order}: millions of rows a second",
                [
                    Bar(one.config["way"], one.value, None, one.config["way"] == OURS)
                    for one in timed.where(order=order).cases()
                ],
            )
            for order in ORDERS
        ]
        sections.append(Section(kind.capitalize(), (), charts, [numbers(timed, NAMES)]))
    shares = found.where(padding=True)
    if shares:
        text = f"Of the values of a batch of {PADDED_BATCH} rows, padded to its own longest row."
        sections.append(Section("Padding", [text], (), [numbers(shares, {"Way": "way"})]))
    return Report("Texts and sequences: against h5py and TFRecord", SUMMARY, [], sections)


def kinds(folder: Path, count: int) -> Sequence[Rows]:
    """Both kinds, written below `folder`."""
    return [Rows(kind, count, folder / kind) for kind in (TEXTS, SEQUENCES)]
