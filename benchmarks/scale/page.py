"""The numbers to reach, and the report. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from support.drawing import Figure, Line, Lines, Stacks
from support.page import Report, Section, Table, Target, at_least, at_most, curves
from support.records import Record

from hpc_train.report import words
from hpc_train.telemetry.progress import GAP
from scale.forecast import Forecast, Measured, curves_in, efficiency
from scale.jobs import PARTS, SYNC, WEAK, Settings
from scale.network import most_efficiency

WEAK_SCALING: Mapping[str, float] = {"cnn": 0.88, "mlp": 0.78}
WEAK_WORKERS = 2
EMULATED, EMULATED_WORKERS, EMULATED_STEP_MS, EMULATED_BYTES = 0.95, 8, 100.0, 10**6
SHORT_STEP_MS, SHORT_STEP_MOST = 5.0, 1.03
OF_MEMORY = 0.97
TITLE = "Scaling of training"
PURPOSE = (
    "How many examples a second the package's training loop reaches on one rank and on more, where a step's time goes, "
    "and what to expect of more ranks than there are here."
)
METHOD = (
    "Each point is a job of its own, measured after a warm-up by a hook on each rank. All points of a curve are run in "
    "turn {passes} times, there, back again, and so on; figures are medians of these. The efficiency is examples a "
    "second over as many times those of one rank that trains alone, in the same pass. Weak scaling: each rank has the "
    "same batch. Strong scaling: one batch is shared out. A dedicated chief, or a parameter server, is a rank on top "
    "of the workers. What a worker sends in a step is computed: a ring-allreduce sends 2(n-1)/n of the gradients, an "
    "asynchronous worker all; as many bytes reach it."
)
EMULATED_TEXT = (
    "EMULATED: the model computes nothing; its steps take {step_ms:g} ms in the queue of a device that works beside "
    "the host, and have {megabytes:g} MB of gradients, which leave it when they are exchanged. Exchange, update, input "
    "and loop are real; updates take the cores' time, and none of the queue's. All ranks share the cores of this "
    "machine, which accelerators' nodes would not. “Busy” is the part of the time in which the device works: between "
    "steps it waits for the exchange and for the host."
)
TRAFFIC = (
    "“Memory allows” is what the copies of the gradients alone leave: all ranks share {gb:.0f} GB/s, as their memcpy "
    "reached in the run of collectives.py."
)
SPLIT_WORDS: Mapping[str, str] = {
    "input": "input",
    "compute": "forward and backward",
    "communication": "communication not hidden",
    "apply": "update",
    "checkpoint": "checkpoint",
    "other": "other",
}
BOUND = (
    "What bounds it: a step of {workers} ranks (sync) takes {longer:.1f} ms longer than that of one rank alone. By "
    "part, in ms: {parts}. If the communication took no time, the efficiency would be {without:.2f}."
)
LEAST_MS = 0.05
HEADER = (
    *("Way", "Workers", "Examples/s", "Lowest to highest", "By worker", "Efficiency", "In the passes"),
    *("Step, ms", "Device waits for host, ms", "Sent a step"),
)
GPU_HEADER = ("GPU memory", "GPU in use")


def targets(records: Iterable[Record], memory_rate: float | None = None) -> list[Target]:
    """Those that something was measured for; memory_rate: bytes a second, see network.py."""
    curves = curves_in(records)
    real = [curve for curve in curves if curve.workload in WEAK_SCALING and curve.kind == WEAK]
    emulated = [curve for curve in curves if curve.emulated_step_ms is not None]
    found = []
    if real:
        at = [(curve, curve.one(way=SYNC, workers=WEAK_WORKERS), WEAK_SCALING[curve.workload]) for curve in real]
        parts = [
            (f"{curve.workload}, {one.config['data']}", f"{one.ratio:.3f}", one.ratio >= least)
            for curve, one, least in at
            if one is not None and one.ratio is not None
        ]
        wanted = ", ".join(f"≥ {least} ({name})" for name, least in WEAK_SCALING.items())
        found.append(Target(f"Weak scaling, {WEAK_WORKERS} ranks", wanted, parts))
    return [*found, *_emulated_targets(emulated, memory_rate)] if emulated else found


def _emulated_targets(curves: Sequence[Measured], memory_rate: float | None) -> Iterable[Target]:
    """Of the curves that they are for; of other ones than those, that nothing was measured."""
    what = f"Emulated {EMULATED_STEP_MS:g} ms steps, {EMULATED_BYTES / 1e6:g} MB, {EMULATED_WORKERS} ranks"
    many = [(curve, one) for curve in curves if (one := curve.one(way=SYNC, workers=EMULATED_WORKERS))]
    asked = [
        (curve.unit, one.ratio)
        for curve, one in many
        if (curve.emulated_step_ms, one.config["gradient_bytes"]) == (EMULATED_STEP_MS, EMULATED_BYTES)
    ]
    short = [curve for curve in curves if curve.emulated_step_ms == SHORT_STEP_MS]
    if asked or not short:
        yield at_least(what, f"efficiency ≥ {EMULATED}", asked, EMULATED, ".3f")
    if short:
        steps = [(curve.unit, curve.alone.config["batch"] / curve.alone.value * 1e3) for curve in short]
        most = SHORT_STEP_MS * SHORT_STEP_MOST
        yield at_most(f"Emulated {SHORT_STEP_MS:g} ms steps, one rank", f"≤ {most:g} ms a step", steps, most)
    if memory_rate is not None and many:
        of_bound = [
            (curve.unit, one.ratio / _memory_allows(curve, EMULATED_WORKERS, memory_rate))
            for curve, one in many
            if one.ratio is not None
        ]
        what = f"Emulated steps, {EMULATED_WORKERS} ranks, over what memory alone allows"
        yield at_least(what, f"≥ {OF_MEMORY}", of_bound, OF_MEMORY, ".3f")


def _memory_allows(curve: Measured, workers: int, memory_rate: float) -> float:
    """The efficiency that the copies of the gradients alone leave to an emulated curve."""
    assert curve.emulated_step_ms is not None
    return most_efficiency(workers, curve.emulated_step_ms / 1e3, curve.alone.config["gradient_bytes"], memory_rate)


def make_page(
    records: Sequence[Record],
    settings: Settings,
    forecasts: Sequence[Forecast],
    network: str,
    memory_rate: float | None = None,
) -> Report:
    """The whole report; `network`: the measured links in words. memory_rate: bytes a second, see network.py."""
    curves = curves_in(records)
    sections = [section for curve in curves for section in _sections(curve, memory_rate)]
    sections += [section for found in forecasts for section in _forecast(found, network)]
    devices = sorted({str(record.config["device"]) for record in records})
    nccl = any(record.config["nccl"] for record in records)
    facts = {"trained on": ", ".join(devices), "allreduce by": "Horovod over NCCL" if nccl else "Horovod over MPI"}
    summary = [PURPOSE, METHOD.format(passes=settings.passes), *answers(forecasts)]
    return Report(TITLE, summary, targets(records, memory_rate), sections, facts)


def answers(forecasts: Sequence[Forecast]) -> Iterator[str]:
    """To --how-many-nodes, a sentence for each curve and kind of allreduce."""
    for found in forecasts:
        for strategy, answer in found.answers:
            error = found.median_error
            told = "" if error is None else f"; median error of the model at the measured points: {error:.0%}"
            yield f"How many nodes? {found.curve.title}, {strategy}: {answer} (between nodes: {found.link}{told})."


def _sections(curve: Measured, memory_rate: float | None) -> Iterator[Section]:
    workers = [record.config["workers"] for record in curve.records]
    figures: list[Figure] = []
    if max(workers) > 1:
        figures = [_efficiency(curve, memory_rate)]
    bars = [(f"{r.config['way']}, {r.config['workers']}", _split(r)) for way in curve.ways for r in curve.of(way)]
    figures.append(Stacks(_marked(curve, "Where a step's time goes"), "ms a step", [bar for bar in bars if bar[1]]))
    parts = [SPLIT_WORDS[part] for part in PARTS if any(SPLIT_WORDS[part] in own for _, own in bars)]
    cells = [(label, *(words.number(own.get(part), 3) for part in parts)) for label, own in bars]
    split = Table(("ms a step", *parts), cells, fold="Where a step's time goes")
    text = []
    if curve.emulated_step_ms is not None:
        megabytes = curve.alone.config["gradient_bytes"] / 1e6
        text = [EMULATED_TEXT.format(step_ms=curve.emulated_step_ms, megabytes=megabytes)]
        text += [TRAFFIC.format(gb=memory_rate / 1e9)] if memory_rate else []
    text += _what_bounds(curve)
    on_gpus = curve.alone.config["gpu_memory_bytes"] is not None
    rows = [(*_row(r), *(_gpu_cells(r) if on_gpus else ())) for way in curve.ways for r in curve.of(way)]
    header = (*HEADER, *(GPU_HEADER if on_gpus else ()))
    yield Section(curve.title, text, figures, [Table(header, rows, names=2), split])


def _marked(curve: Measured, title: str) -> str:
    return title if curve.emulated_step_ms is None else f"{title} (emulated)"


def _efficiency(curve: Measured, memory_rate: float | None) -> Lines:
    lines = curves(curve.records, "workers", efficiency, lambda one: one.config["ratio_spread"])
    if curve.emulated_step_ms is not None and memory_rate:
        counts = sorted({record.config["workers"] for record in curve.records})
        bound = [(n, _memory_allows(curve, n, memory_rate)) for n in counts]
        lines.append(Line("memory allows", bound, dashed=True))
    return Lines(_marked(curve, "Efficiency"), "workers", "of as many times one rank", lines, limits={"ideal": 1.0})


def _split(record: Record) -> dict[str, float]:
    """Milliseconds of a step by what they are spent on."""
    shares, step_ms = record.config["shares"], 1e3 * record.config["step_secs"]["0.5"]
    return {SPLIT_WORDS[part]: shares[part] * step_ms for part in PARTS if shares.get(part, 0.0) > 0}


def _what_bounds(curve: Measured) -> list[str]:
    """Of weak scaling: by what a step of many ranks is longer than that of one, the longest first."""
    most, alone = curve.of(SYNC)[-1], _split(curve.alone)
    split = _split(most)
    if curve.kind != WEAK or most == curve.alone or not (alone and split):
        return []
    longer = {part: split.get(part, 0.0) - alone.get(part, 0.0) for part in {**split, **alone}}
    parts = sorted(((ms, part) for part, ms in longer.items() if abs(ms) >= LEAST_MS), reverse=True)
    step, one = (1e3 * record.config["step_secs"]["0.5"] for record in (most, curve.alone))
    exchange = split.get(SPLIT_WORDS["communication"], 0.0)
    told = BOUND.format(
        workers=most.config["workers"],
        longer=step - one,
        parts=", ".join(f"{part} {ms:+.1f}" for ms, part in parts) or "nothing of it stands out",
        without=one / (step - exchange),
    )
    return [told]


def _row(record: Record) -> tuple[str, ...]:
    config, rates = record.config, record.config["examples_per_sec_by_rank"]
    low, high = config["ratio_spread"]
    return (
        config["way"],
        f"{config['workers']}",
        _rate(record.value),
        f"{_rate(record.spread[0])} to {_rate(record.spread[1])}",
        f"{_rate(min(rates))} to {_rate(max(rates))}" if len(rates) > 1 else _rate(rates[0]),
        f"{efficiency(record):.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{1e3 * config['step_secs']['0.5']:.2f}",
        _gap(record),
        f"{config['sent_bytes_a_step'] / 1e6:,.1f} MB",
    )


def _gap(record: Record) -> str:
    """Milliseconds of a step in which the device waits for the host; of an emulated one with the part that it works."""
    gap, busy = record.config["shares"].get(GAP), record.config.get("busy")
    in_ms = words.number(None if gap is None else gap * 1e3 * record.config["step_secs"]["0.5"], 2)
    return in_ms if busy is None else f"{in_ms} (busy {busy:.1%})"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _gpu_cells(record: Record) -> tuple[str, str]:
    memory, use = record.config["gpu_memory_bytes"], record.config["gpu_use"]
    return ("" if memory is None else f"{memory / 1e9:.1f} GB", "" if use is None else f"{use:.0%}")


def _forecast(found: Forecast, network: str) -> Iterator[Section]:
    title = found.curve.title
    lines = [
        Line(str(strategy), [(point.ranks, point.efficiency) for point in points], dashed=True)
        for strategy, points in found.curves
    ]
    measured = [(r.ranks, efficiency(r)) for r in found.curve.of(SYNC)]
    plot = Lines(
        f"Efficiency to be expected: {title}",
        "ranks",
        "of as many times one rank",
        [*lines, Line("measured, sync", measured)],
        limits={"ideal": 1.0},
    )
    rows = [
        (point.way, f"{point.ranks}", _rate(point.measured), _rate(point.predicted), f"{point.error:+.1%}")
        for point in found.checked
    ]
    texts = [
        network,
        "Dashed lines are predictions: the measured step of one rank, its spread as stragglers (simulated), and what "
        "an exchange takes over these links. They know nothing of other jobs on the network, nor of ranks that share a "
        "node's memory and cores, unless the links were measured with them.",
    ]
    header = ("Way", "Ranks", "Measured, examples/s", "Predicted", "Error")
    kind = "weak" if found.curve.kind == WEAK else "strong"
    tables = [Table(header, rows, names=2)] if rows else []
    yield Section(f"To more ranks ({kind}): {title}", texts, [plot], tables)
