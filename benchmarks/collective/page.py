"""The records that what ranks measured becomes, the number to reach, and the report. Pure.

A number to reach is never changed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from scale.network import BENCHMARK, OVER_TCP, RAW, network_of
from support.drawing import Lines
from support.page import Report, Section, Table, Target, curves, numbers
from support.records import Found, Record, Sample, records_of

from collective import plan

BUS_SHARE = 0.9
FROM_BYTES = 1 << 20
COLUMNS = (
    *(("size", ">10", True), ("count", ">10", False), ("type", ">7", False), ("operation", "<10", True)),
    *(("way", "<30", True), ("time us", ">11", True), ("algbw", ">8", False), ("busbw", ">8", True)),
    *(("x raw", ">7", True), ("x memcpy", ">8", False), ("#wrong", ">6", True)),
)
"""Of the lines on the terminal, as nccl-tests has them: name, format, and whether it is shown in narrow ones."""
NARROW_WAY = "<20.20"
NAMES = {"Size": "size", "count": "count", "type": "type", "Way": "way"}
SUMMARY = (
    "How fast sums of gradients, copies of parameters and one-sided accesses get through, and what bounds Horovod "
    "where it is slower than the MPI that it uses.",
    "Columns are those of nccl-tests. Time is that of the slowest rank; algbw is size over time; the value is busbw, "
    "what each link carries: algbw x 2(n-1)/n for allreduce, algbw for the others. All ways of a size take turns (A B "
    "B A); ratios are medians over pairs that ran beside each other. Sums are checked number by number before and "
    "after. Horovod has its default fusion threshold of 128 MB: it crashes when it is started a second time with "
    "another.",
)
BOUNDS = (
    f"As multiples of the time of raw MPI_Allreduce. A group of {plan.TENSORS} tensors costs two copies more than one "
    "tensor, a mean one pass more over the result; “two copies” is what they would take by memcpy. Where one tensor "
    "takes as long as raw MPI into new memory, the kernel, which clears new pages, is the bound; where as long as raw "
    "MPI beside Horovod, its thread and MPI share cores."
)
FITTED = (
    "A message of m bytes takes alpha + m x beta (Hockney 1994), an allreduce 2(n-1) of them (Patarasuk and Yuan 2009) "
    "after the ranks have agreed; relative least squares over all sizes. So benchmarks/scaling.py predicts."
)


def unit_of(run: plan.Run, operation: str, nbytes: int) -> str:
    """What is measured, or not, as one."""
    return f"{operation}, {run.place}, {run.ranks} ranks, {plan.size_name(nbytes)}"


def records(
    run: plan.Run, about: Mapping[str, Any], operation: str, nbytes: int, ways: Mapping[str, Mapping[str, Any]]
) -> Iterator[Record]:
    """A record for each way and each of what it is compared with; values are bus bandwidths in GB/s."""
    factor = plan.bus_factor(operation, run.ranks)
    rates = {
        way: [(1.0 if way == plan.MEMCPY else factor) * nbytes / secs / 1e9 for secs in told["secs"]]
        for way, told in ways.items()
    }
    for way, told in ways.items():
        secs = median(told["secs"])
        config = {"operation": operation, "place": run.place, "way": way, "bytes": nbytes}
        config |= {"size": plan.size_name(nbytes), "count": nbytes // 4, "type": "float32"}
        config |= {"secs": secs, "us": 1e6 * secs}
        config |= {"algbw": nbytes / secs / 1e9, "iterations": told["iterations"], "wrong": 0}
        config |= {"one_sided": run.one_sided, **about}
        others = (plan.raw_of(operation), plan.MEMCPY) if way != plan.MEMCPY else ()
        against = {other: rates[other] for other in others if other in ways and other != way}
        case = f"{unit_of(run, operation, nbytes)}, {way}"
        yield from records_of(BENCHMARK, "GB/s", [Sample(case, rates[way], against, run.ranks, config)])


def header(width: int) -> str:
    """The names of the columns, in so many characters."""
    return _line({name: name for name, _, _ in COLUMNS}, width)


def lines(kept: Sequence[Record], width: int) -> Iterator[str]:
    """The lines of one unit on a terminal of so many characters."""
    found = Found(kept)
    for record in found.cases():
        own = record.config
        ratios = [found.ratio(name, way=own["way"]) for name in (plan.raw_of(own["operation"]), plan.MEMCPY)]
        raw = plan.ratio_text(1.0 if own["way"] == plan.raw_of(own["operation"]) else ratios[0])
        cells = {"size": own["bytes"], "time us": f"{own['us']:.2f}", "algbw": f"{own['algbw']:.3g}"}
        cells |= {"busbw": f"{record.value:.3g}", "x raw": raw, "x memcpy": plan.ratio_text(ratios[1])}
        yield _line(
            {**cells, "#wrong": own["wrong"], **{n: own[n] for n in ("count", "type", "operation", "way")}}, width
        )


def _line(cells: Mapping[str, object], width: int) -> str:
    full = " ".join(f"{cells[name]!s:{how}}" for name, how, _ in COLUMNS)
    if len(full) <= width:
        return full
    hows = ((name, NARROW_WAY if name == "way" else how) for name, how, narrow in COLUMNS if narrow)
    return " ".join(f"{cells[name]!s:{how}}" for name, how in hows)


def targets(found: Found) -> list[Target]:
    """All of them."""
    wanted = f"≥ {BUS_SHARE:g} x raw MPI_Allreduce from {plan.size_name(FROM_BYTES)} on (the lowest of all sizes)"
    parts = []
    allreduce = found.where(operation="allreduce")
    for place, ranks in allreduce.each("place", "ranks"):
        for way in (plan.ONE_TENSOR, plan.GROUP):
            ratios = [
                (one.ratio, one.config["bytes"])
                for one in allreduce.where(place=place, ranks=ranks, way=way)
                if one.baseline == RAW and one.config["bytes"] >= FROM_BYTES and one.ratio is not None
            ]
            if ratios:
                ratio, nbytes = min(ratios)
                measured = f"{ratio:.3f} at {plan.size_name(nbytes)}"
                parts.append((f"{place}, {ranks} ranks, {way}", measured, ratio >= BUS_SHARE))
    return [Target("Horovod's bus bandwidth", wanted, parts)]


def make_page(kept: Sequence[Record], quick: bool) -> Report:
    """The whole report."""
    found = Found(kept)
    sections = []
    for place, ranks in found.each("place", "ranks"):
        here = found.where(place=place, ranks=ranks)
        for operation in here.each("operation"):
            sections.append(_section(here.where(operation=operation), operation, f"{place}, {ranks} ranks", ranks))
        bounds = _bounds(here.where(operation="allreduce"))
        if bounds.rows:
            text = [*(f"{way}: {plan.WHAT[way]}." for way in plan.DIAGNOSED), BOUNDS]
            sections.append(Section(f"What bounds Horovod, {place}, {ranks} ranks", text, tables=[bounds]))
    settings = [record.config["settings"] for record in kept if not record.config["one_sided"]]
    facts = {f"ranks: {name}": value for name, value in (settings[0] if settings else {}).items()}
    title = "Collectives: Horovod and one-sided windows against MPI itself and memcpy"
    return Report(title, [*SUMMARY, *_about(found)], targets(found), [*sections, *_fitted(found, quick)], facts)


def _about(found: Found) -> Iterator[str]:
    devices = [device for device in found.each("device") if device != "CPU"]
    if devices:
        yield (
            f"Horovod's tensors lie on a GPU ({', '.join(sorted(devices))}) and go through NCCL; raw MPI and memcpy "
            "are the host's, so ratios to them compare two kinds of memory."
        )
    elif found:
        yield "No GPU took part: Horovod's tensors lie in the host's memory and go through MPI."
    if OVER_TCP in found.each("place"):
        yield "“one host, TCP”: ranks of one machine that are set to talk over TCP through the loopback interface."


def _section(found: Found, operation: str, where: str, ranks: int) -> Section:
    """Bus bandwidth over size; of an allreduce its time, too."""
    ways = [way for way in found.each("way") if way not in plan.DIAGNOSED]
    title = f"{operation.capitalize()}, {where}"
    text = [f"{way}: {plan.WHAT[way]}." for way in ways if operation == "allreduce" or way != plan.MEMCPY]
    if operation == "broadcast":
        text = ["From rank 0 to all.", *text]
    elif operation != "allreduce":
        text = [f"From rank {ranks - 1} to the memory of rank 0, with a flush after each; the others rest.", *text]
    shown = [one for one in found if one.config["way"] not in plan.DIAGNOSED]
    rates = curves(shown, "bytes", lambda one: one.value, lambda one: one.spread, dashed=plan.MEMCPY)
    figures = [Lines("Bus bandwidth; shaded: slowest to fastest repeat", "bytes", "GB/s", rates)]
    if operation == "allreduce":
        times = curves(
            (one for one in shown if one.config["way"] != plan.MEMCPY), "bytes", lambda one: one.config["us"]
        )
        figures.append(Lines("Time", "bytes", "µs", times, log_y=True))
    table = numbers(found, NAMES, {"time, µs": "us", "algbw, GB/s": "algbw"}, "All numbers")
    return Section(title, text, figures, [table])


def _bounds(found: Found) -> Table:
    columns = (plan.NEW_MEMORY, plan.BESIDE, plan.ONE_TENSOR, plan.GROUP, plan.MEAN)
    rows = []
    for nbytes in found.each("bytes"):
        own = found.where(bytes=nbytes)
        raw, copy = own.one(way=RAW), own.one(way=plan.MEMCPY)
        if nbytes < plan.DIAGNOSED_BYTES or raw is None or copy is None:
            continue
        ratios = [own.ratio(RAW, way=way) for way in columns]
        times = [f"{1 / ratio:.2f}" if ratio else "" for ratio in ratios]
        copies = 2 * copy.config["secs"] / raw.config["secs"]
        rows.append((plan.size_name(nbytes), f"{raw.config['us']:,.0f}", *times, f"{copies:.2f}"))
    return Table(("size", "raw, µs", *columns, "two copies"), rows)


def _fitted(found: Found, quick: bool) -> Iterator[Section]:
    """What the model of scale takes from these figures."""
    allreduces = found.where(operation="allreduce")
    if not allreduces or quick:
        return
    try:
        fitted = network_of(found, max(allreduces.each("ranks_per_node")))
    except ValueError as error:
        yield Section("Latency and bandwidth", [f"Not fitted: {error}."])
        return
    yield Section("Latency and bandwidth", [FITTED, fitted.words])
