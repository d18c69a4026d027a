"""The numbers to reach, and the report. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from support import page_cache
from support.drawing import Bar, Bars
from support.page import Report, Section, Table, Target, at_least, at_most, numbers
from support.records import Found

from inputs.cases import ONE_THREAD, ORDERS, STEP_SECS, Settings
from inputs.contestants import DATASET, MEMCPY, READER, TFRECORD, ZLIB
from inputs.data import LAYOUTS, ROW_KINDS

MEMCPY_RATIO = {"none": 0.7, "global": 0.35, "block": 0.25}
TFRECORD_RATIO = 5.0
ZLIB_TIME = 1.2
TWO_THREADS = 1.6
WAIT_PERCENT = 1.0
WORDS = {"none": "Sequential", "block": "Block shuffle", "global": "Global shuffle"}
ALL_ROWS = tuple(kind.name for kind in ROW_KINDS)
GLOBAL_ROWS = ("3 KB",)
"""Of the target for a global shuffle against memcpy."""
NAMES = {"Rows": "rows", "Layout": "layout", "Way": "way", "Threads": "threads"}

ABOUT = {
    "none": "TFRecord has no shuffle buffer here.",
    "block": "TFRecord is read through a shuffle buffer of 10 % of the rows.",
    "global": "np.take gathers the same random rows from an array in memory. TFRecord has a shuffle buffer of 10 % of "
    "the rows. Chunks stay decoded in memory here, so after the first epoch compressed rows are only gathered.",
}
GENERATOR = "By batch as slices or row by row, over h5py, in turns with tf.data of the contiguous files."
ONE_CORE = "All threads of the process are kept on one core, ours too, and ours has one reader thread."
GZIP = "In file order. zlib is zlib.decompress of the same chunks, lying in memory, in one thread."
STEP = (
    "A Keras model trains on contiguous rows of 3 KB, in turn with the same steps on one batch that stays in memory. "
    "Wait is what the training loop's own feed counts."
)
COLD = (
    f"Dropped before each run by {page_cache.METHOD}. File reads are the stored bytes of the same files in blocks of "
    "1 MB, the others count row bytes, so compressed files can pass them."
)
DATA = (
    "Made images, tuned so that gzip shrinks them about as it does Fashion-MNIST (1.76 times, 784 B), CIFAR-10 (1.1, "
    "3 KB) and photographs (1.4 to 1.5, 150 KB). Four shards; chunks of about 256 KB in whole rows; gzip level 4; "
    "blosc is lz4 level 5."
)
SUMMARY = (
    "How fast hpc_train delivers batches from HDF5 shards. “reader” is its reading into numpy arrays, without "
    "TensorFlow; “tf.data” is batches coming out of the training dataset, shuffling included.",
    "memcpy is np.copyto, batch by batch, from one large array into one batch buffer, on one core. Every case ran in "
    "turn with its baselines (A B B A) after a warm-up, {repeats} times, each one pass over the data or {secs:g} s of "
    "it; medians are quoted. Bytes are those of the rows, image and int64 label.",
)
FILES_HEADER = ("Rows", "image", "rows", "batch", "MB", *(f"{layout}, times smaller" for layout in LAYOUTS[2:]))


def targets(found: Found, settings: Settings) -> list[Target]:
    """All targets, in the order of the issue that set them."""
    warm = found.where(layout="contiguous", cache="warm")
    return [*_against_memcpy(warm, settings), *_against_tfrecord(warm, settings), *_gzip(found), _step(found)]


def _against_memcpy(found: Found, settings: Settings) -> Iterator[Target]:
    for order, wanted in MEMCPY_RATIO.items():
        of = ", rows of 3 KB" if order == "global" else ""
        for way, threads in dict.fromkeys(((READER, 1), (READER, settings.threads), (DATASET, settings.threads))):
            own = found.where(order=order, way=way, threads=threads, cores="all")
            measured = [(rows, own.ratio(MEMCPY, rows=rows)) for rows in (GLOBAL_ROWS if of else ALL_ROWS)]
            what = f"{WORDS[order]}, contiguous{of}: {way}, {threads} thread{'s' if threads > 1 else ''}"
            yield at_least(what, f"≥ {wanted} x memcpy", measured, wanted)


def _against_tfrecord(found: Found, settings: Settings) -> Iterator[Target]:
    for order in ORDERS:
        for cores, threads, words in (("one", 1, "both on one core"), ("all", settings.threads, "ours on all cores")):
            own = found.where(order=order, way=DATASET, threads=threads, cores=cores)
            what = f"{WORDS[order]}, contiguous: tf.data, {words}"
            measured = [(rows, own.ratio(TFRECORD, rows=rows)) for rows in ALL_ROWS]
            yield at_least(what, f"≥ {TFRECORD_RATIO:g} x TFRecord", measured, TFRECORD_RATIO)


def _gzip(found: Found) -> Iterator[Target]:
    own = found.where(layout="gzip", order="none", cache="warm")
    speeds = [(rows, own.ratio(ZLIB, rows=rows, way=READER, threads=1)) for rows in ALL_ROWS]
    times = [(rows, 1 / speed) for rows, speed in speeds if speed]
    yield at_most("gzip, sequential, one thread: reader", f"≤ {ZLIB_TIME:g} x the time of zlib", times, ZLIB_TIME)
    for way in (READER, DATASET):
        measured = [(rows, own.ratio(ONE_THREAD, rows=rows, way=way, threads=2)) for rows in ALL_ROWS]
        if way == READER or any(ratio is not None for _, ratio in measured):
            what = f"gzip, sequential, two threads: {way}"
            yield at_least(what, f"≥ {TWO_THREADS:g} x one thread", measured, TWO_THREADS)


def _step(found: Found) -> Target:
    waits = [(WORDS[one.config["order"]], one.value) for one in found.where(way="wait")]
    what = f"Wait for input in a training step of {1000 * STEP_SECS:g} ms, rows of 3 KB, in %"
    return at_most(what, f"≤ {WAIT_PERCENT:g} % of the step", waits, WAIT_PERCENT, ".2f")


def make_page(found: Found, settings: Settings, facts: Mapping[str, object], files: Sequence[Sequence[str]]) -> Report:
    """The whole report. `files`: one row of text for each row kind, as `FILES_HEADER` names them."""
    warm = found.where(cache="warm")
    plain = warm.where(cores="all", beside="")
    steps = Found(one for one in found if one.config["way"] in ("wait", "time"))
    rest = (
        ("Against from_generator", GENERATOR, [one for one in warm if "from_generator" in one.case]),
        ("Against TFRecord on one core", ONE_CORE, warm.where(cores="one")),
        ("gzip", GZIP, plain.where(layout="gzip", order="none")),
        ("Fed to a training step", STEP, steps),
        ("Cold page cache", COLD, found.where(cache="cold")),
    )
    sections = [_order(Found(o for o in plain if "from_generator" not in o.case).where(order=o), o) for o in ORDERS]
    sections += [
        Section(title, [text], tables=[numbers(own, {**NAMES, "shuffle": "order"})]) for title, text, own in rest if own
    ]
    sections.append(Section("Data", [DATA], tables=[Table(FILES_HEADER, files, names=2)]))
    title = "Input pipeline: HDF5 against memcpy, TFRecord and h5py"
    summary = [text.format(repeats=2 * settings.rounds, secs=settings.limit_secs) for text in SUMMARY]
    return Report(title, summary, targets(found, settings), sections, facts)


def _order(found: Found, order: str) -> Section:
    text = f"Bytes a second as a share of memcpy, which is 1. {ABOUT[order]} Marks: targets for contiguous files."
    charts = []
    for rows in found.each("rows"):
        own, bars = found.where(rows=rows), []
        for one in own.cases():
            config = one.config
            memcpy = own.one(way=MEMCPY, layout=config["layout"])
            if memcpy is None or config["way"] == MEMCPY:
                continue
            ours = config["way"] in (READER, DATASET)
            marked = ours and config["layout"] == "contiguous" and (order != "global" or rows in GLOBAL_ROWS)
            threads = f", {config['threads']}" if ours else ""
            label = f"{config['layout']}, {config['way']}{threads}"
            bars.append(Bar(label, one.value / memcpy.value, MEMCPY_RATIO[order] if marked else None, ours))
        charts.append(Bars(f"Rows of {rows}", bars))
    table = numbers(found, NAMES, {"CPU s a GB": "cpu_secs_per_gb"}, "All numbers, every layout")
    return Section(f"{WORDS[order]} (shuffle: {order})", [text], charts, [table])
