"""The report: its words, figures and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scale_model.costs import allreduce_secs
from scale_model.measured import OVER_TCP, RAW, FittedNetwork, network_of
from support.figures import Line, LinePlot
from support.records import Record
from support.report import Report, Section, Table

from collective.places import ALL_NODES
from collective.results import Found
from collective.targets import targets
from collective.ways import (
    BESIDE,
    DIAGNOSED,
    DIAGNOSED_BYTES,
    GROUP,
    MEAN,
    MEMCPY,
    NEW_MEMORY,
    ONE_TENSOR,
    TENSORS,
    WHAT,
    ratio_text,
    raw_of,
    size_name,
)

TITLE = "Collectives: Horovod and one-sided windows against MPI itself and memcpy"
PURPOSE = (
    "How fast sums of gradients, copies of parameters and one-sided accesses get through, from 4 B on, and what bounds "
    "Horovod where it is slower than the MPI that it uses."
)
METHOD = (
    "Columns are those of nccl-tests. Time is that of the slowest rank; algbw is size over time; busbw is what each "
    "link carries: algbw x 2(n-1)/n for allreduce, algbw for the others. All ways of a size take turns (A B B A); "
    "figures are medians, ratios are medians over pairs that ran beside each other. Sums are checked number by number "
    "before and after; where one is wrong, the ranks end, and what they had left is not measured. Horovod has its "
    "default fusion threshold of 128 MB: it crashes when it is started a second time with another. So the 1 MiB that "
    "hpc_train sets for ranks of one node without GPUs is not part of this."
)
TCP_WORDS = "“one host, TCP”: ranks of one machine that are told to talk over TCP through the loopback interface."


def make_page(records: Sequence[Record], quick: bool) -> Report:
    """The whole report."""
    found = Found(records)
    sections = [
        section
        for place, ranks in found.groups()
        for section in (*_allreduce(found, place, ranks), *_others(found, place, ranks))
    ]
    settings = [record.config["settings"] for record in records if not record.config["one_sided"]]
    facts = {f"ranks: {name}": value for name, value in (settings[0] if settings else {}).items()}
    return Report(TITLE, list(_summary(records)), targets(found), [*sections, *_fitted(records, quick)], facts)


def _summary(records: Sequence[Record]) -> Iterator[str]:
    yield PURPOSE
    yield METHOD
    abouts = {(record.config["place"], record.config["device"], record.config["nccl"]) for record in records}
    places = {place for place, _, _ in abouts}
    if any(device != "CPU" for _, device, _ in abouts):
        devices = sorted({device for _, device, _ in abouts if device != "CPU"})
        yield (
            f"Horovod's tensors lie on a GPU ({', '.join(devices)}) and go through NCCL; raw MPI and memcpy are the "
            "host's, so ratios to them compare two kinds of memory."
        )
    elif records:
        yield "No GPU took part: Horovod's tensors lie in the host's memory and go through MPI."
    if OVER_TCP in places:
        yield TCP_WORDS


def _allreduce(found: Found, place: str, ranks: int) -> Iterator[Section]:
    if "allreduce" not in found.operations(place, ranks):
        return
    ways = [way for way in found.ways(place, ranks, "allreduce") if way not in DIAGNOSED]
    text = [f"{way}: {WHAT[way]}." for way in ways]
    yield Section(
        f"Allreduce, {place}, {ranks} ranks",
        text,
        figures=[
            _plot(found, place, ranks, "allreduce", ways),
            _times(found, place, ranks, [way for way in ways if way != MEMCPY]),
        ],
        tables=[_table(found, place, ranks, "allreduce")],
    )
    bounds = _bounds(found, place, ranks)
    if bounds.rows:
        yield Section(
            f"What bounds Horovod, {place}, {ranks} ranks",
            [
                *(f"{way}: {WHAT[way]}." for way in (NEW_MEMORY, BESIDE)),
                f"All as multiples of the time of raw MPI_Allreduce. A group of {TENSORS} tensors costs two copies "
                "more than one tensor (into the fusion buffer and out), a mean one pass more over the result; “two "
                "copies” is what they would take by memcpy. Where one tensor takes as long as raw MPI into new memory, "
                "the kernel, which clears new pages, is the bound; where it takes as long as raw MPI beside Horovod, "
                "its thread and MPI share cores.",
            ],
            tables=[bounds],
        )


def _bounds(found: Found, place: str, ranks: int) -> Table:
    columns = (NEW_MEMORY, BESIDE, ONE_TENSOR, GROUP, MEAN)
    rows = []
    for size in found.sizes(place, ranks, "allreduce"):
        raw, copy = (found.get(place, ranks, "allreduce", size, way) for way in (RAW, MEMCPY))
        if size < DIAGNOSED_BYTES or raw is None or copy is None:
            continue
        ratios = [found.ratio(place, ranks, "allreduce", size, way, RAW) for way in columns]
        copies = 2 * copy.config["secs"] / raw.config["secs"]
        times = [f"{1 / ratio:.2f}" if ratio else "" for ratio in ratios]
        rows.append((size_name(size), f"{1e6 * raw.config['secs']:,.0f}", *times, f"{copies:.2f}"))
    return Table(("size", "raw, µs", *columns, "two copies"), rows)


def _others(found: Found, place: str, ranks: int) -> Iterator[Section]:
    for operation in found.operations(place, ranks):
        if operation == "allreduce":
            continue
        ways = found.ways(place, ranks, operation)
        how = (
            "From rank 0 to all."
            if operation == "broadcast"
            else f"From rank {ranks - 1} to the memory of rank 0, with a flush after each; the other ranks rest."
        )
        yield Section(
            f"{operation.capitalize()}, {place}, {ranks} ranks",
            [how, *(f"{way}: {_what(way, operation)}." for way in ways if way != MEMCPY)],
            figures=[_plot(found, place, ranks, operation, ways)],
            tables=[_table(found, place, ranks, operation)],
        )


def _what(way: str, operation: str) -> str:
    return (
        "hvd.broadcast of one tensor inside a tf.function"
        if (way, operation) == (ONE_TENSOR, "broadcast")
        else WHAT[way]
    )


def _plot(found: Found, place: str, ranks: int, operation: str, ways: Sequence[str]) -> LinePlot:
    """Bus bandwidth over size; memcpy is the limit, and changes with the size."""
    lines = []
    for way in ways:
        records = [
            (size, record)
            for size in found.sizes(place, ranks, operation)
            if (record := found.get(place, ranks, operation, size, way)) is not None
        ]
        points = [(float(size), record.value) for size, record in records]
        band = [(float(size), *record.spread) for size, record in records] if way != MEMCPY else []
        lines.append(Line(way, points, band, dashed=way == MEMCPY, marked=way != MEMCPY))
    title = f"{operation.capitalize()}, {place}, {ranks} ranks"
    return LinePlot(title, "bytes", "bus bandwidth, GB/s", lines, log_x=True, note="Shaded: slowest to fastest repeat.")


def _times(found: Found, place: str, ranks: int, ways: Sequence[str]) -> LinePlot:
    lines = [
        Line(
            way,
            [
                (float(size), 1e6 * record.config["secs"])
                for size in found.sizes(place, ranks, "allreduce")
                if (record := found.get(place, ranks, "allreduce", size, way)) is not None
            ],
        )
        for way in ways
    ]
    return LinePlot(f"Time of an allreduce, {place}, {ranks} ranks", "bytes", "µs", lines, log_x=True, log_y=True)


def _table(found: Found, place: str, ranks: int, operation: str) -> Table:
    raw = raw_of(operation)
    header = (
        *("size", "count", "type", "way", "time, µs", "algbw, GB/s", "busbw, GB/s", "slowest to fastest"),
        *(f"x {raw}", "x memcpy", "#wrong"),
    )
    rows = []
    for size in found.sizes(place, ranks, operation):
        for way in found.ways(place, ranks, operation):
            record = found.get(place, ranks, operation, size, way)
            if record is None:
                continue
            own, (low, high) = record.config, record.spread
            ratios = [found.ratio(place, ranks, operation, size, way, other) for other in (raw, MEMCPY)]
            rows.append(
                (
                    *(size_name(size), f"{own['count']:,}", own["type"], way, f"{1e6 * own['secs']:.4g}"),
                    *(f"{own['algbw']:.3g}", f"{record.value:.3g}", f"{low:.3g} to {high:.3g}"),
                    *(ratio_text(ratio) for ratio in ratios),
                    f"{own['wrong']}",
                )
            )
    return Table(header, rows, names=4, fold="All numbers")


def _fitted(records: Sequence[Record], quick: bool) -> Iterator[Section]:
    """What the model of scale takes from these figures, and how far off it is."""
    allreduces = [record for record in records if record.config["operation"] == "allreduce"]
    if not allreduces or quick:
        return
    per_node = max(record.config["ranks_per_node"] for record in allreduces)
    try:
        fitted = network_of(records, per_node)
    except ValueError as error:
        yield Section("Latency and bandwidth", [f"Not fitted: {error}."])
        return
    text = (
        "What benchmarks/scale_model takes from these figures: a message of m bytes takes alpha + m x beta (Hockney "
        "1994), an allreduce 2(n-1) of them (Patarasuk and Yuan 2009), after the ranks have agreed. Relative least "
        "squares over all sizes.",
        fitted.words,
    )
    header = ("place", "ranks", "size", "measured, µs", "fitted, µs", "error")
    yield Section(
        "Latency and bandwidth", text, tables=[Table(header, _errors(allreduces, fitted), names=3, fold="All points")]
    )


def _errors(allreduces: Sequence[Record], fitted: FittedNetwork) -> list[tuple[str, ...]]:
    found = Found(allreduces)
    rows: list[tuple[str, ...]] = []
    links = {fitted.inside: fitted.network.inside, fitted.between: fitted.network.between}
    for place, ranks in found.groups():
        if place not in (fitted.inside, fitted.between, ALL_NODES):
            continue
        network = fitted.network
        if place != ALL_NODES:  # one link only
            network = type(network)(links[place], links[place], ranks)
        ways = found.ways(place, ranks, "allreduce")
        way = GROUP if GROUP in ways else ONE_TENSOR
        for size in found.sizes(place, ranks, "allreduce"):
            record = found.get(place, ranks, "allreduce", size, way)
            if record is not None:
                secs, said = record.config["secs"], allreduce_secs("ring", network, ranks, size)
                times = (f"{1e6 * secs:.4g}", f"{1e6 * said:.4g}", f"{said / secs - 1:+.0%}")
                rows.append((place, f"{ranks}", size_name(size), *times))
    return rows
