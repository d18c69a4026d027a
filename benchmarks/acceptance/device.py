"""The device of a rank: how long it waits for the host, whether its input is there ahead, and 16-bit computing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from peers.models import LARGE, MLP, write_data
from peers.settings import LOSS_KEPT
from scale.jobs import MEMORY, SYNC, Case, Run, run_case
from scale.workloads import WORKLOADS
from support.drawing import Bar, Bars
from support.page import Report, Section, Table, Target, at_least, at_most
from support.records import Found, Record, Sample, records_of
from support.timing import there_and_back
from support.usage import tell

from acceptance.rounds import Job, Trained, train_in_turn
from acceptance.settings import BENCHMARK, STAND_IN, Site
from hpc_train.report import words
from hpc_train.telemetry.progress import GAP

GAP_TITLE, INPUT_TITLE, PRECISION_TITLE = "Device waits for host", "Input to the device", "Mixed precision"

MOST_GAP = 0.03
EMULATED_MS, EMULATED_BYTES = 5.0, 10**6
GAP_MODEL = "cnn"
DEPTHS = (0, 1)
GAP_TEXT = (
    "One rank. The part of the time in which the device has nothing to do because the host has not dispatched the next "
    "step, with no step in flight beside the one that runs, and with one (run.steps_in_flight)."
)
GAP_STAND_IN = (
    f"{STAND_IN}an emulated device stands in for it, whose steps take {EMULATED_MS:g} ms in a queue of its own beside "
    "the host; it computes nothing."
)

AHEAD, BY_THE_STEP = "copied ahead", "copied by the step"
INPUT_BATCH = 4096
LEAST_INPUT = 0.98
INPUT_TEXT = (
    "Rows of HDF5 shards, {batch} a step. “Copied ahead” is the package's way: two batches are copied to the device "
    "while it computes. “Copied by the step”: each lies in the host's memory until a step takes it."
)
INPUT_STAND_IN = (
    f"{STAND_IN}a second device of TensorFlow on the same processor stands in for it. Whether batches are there ahead "
    "is true of it; a copy from memory to memory shows nothing of what that saves on a GPU."
)

FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
PRECISION_BATCH = 2048
LAST_LOSSES = 0.2
MOST_LOSS = 0.05
LEAST_PRECISION = 1.0
PRECISION_TEXT = (
    "{model}, {batch} rows a step, {steps} steps of each from the same weights and rows. The last loss is the mean of "
    "the last fifth of the steps; one that has not fallen below {kept:.0%} of the first one counts as no training. "
    "float32 as TensorFlow has it, on GPUs with TF32."
)
PRECISION_STAND_IN = (
    f"{STAND_IN}bfloat16 on the processor stands in for it, and float16 is left out. The losses are bfloat16's; its "
    "speed there says nothing of a GPU, and has no target."
)


def in_flight(depth: int) -> str:
    """A way of the gap, in words."""
    return f"{depth} in flight"


def idle_of(run: Run) -> float:
    """The part of the time in which the device waits: of an emulated one what it does not work, else the gap.

    Raises:
        RuntimeError: Neither is known.
    """
    idle = run.shares.get(GAP) if run.busy is None else 1 - run.busy
    if idle is None:
        raise RuntimeError("the job did not tell how long its device waited for the host; it ended too early")
    return idle


def measure_gap(site: Site) -> None:
    """With no step in flight, and with one."""
    how, results = site.settings, site.results
    emulated = not site.gpus

    def run(depth: int) -> dict[str, Any]:
        if emulated:
            case = Case("emulated", MEMORY, SYNC, 1, 32, EMULATED_MS, EMULATED_BYTES, depth)
        else:
            case = Case(GAP_MODEL, MEMORY, SYNC, 1, WORKLOADS[GAP_MODEL].gpu_batch, steps_in_flight=depth)
        found = run_case(site.folder, case, how.scale, site.launcher())
        step_secs = (case.batch or 1) / found.total
        tell(f"{GAP_TITLE}: {in_flight(depth)}: {idle_of(found):.1%} of {1e3 * step_secs:.2f} ms")
        name = "emulated device" if emulated else found.device
        return {"idle": idle_of(found), "step_ms": 1e3 * step_secs, "device": name}

    def records() -> list[Record]:
        told = results.turns(GAP_TITLE, {in_flight(depth): partial(run, depth) for depth in DEPTHS}, how.passes)
        found = []
        for way, runs in told.items():
            last = runs[-1]
            config = {"part": GAP_TITLE, "way": way, **last}
            sample = Sample(f"gap, {way}", [100 * one["idle"] for one in runs], config=config)
            found += records_of(BENCHMARK, "% of step", [sample])
        return found

    results.add(GAP_TITLE, results.attempt(GAP_TITLE, records) or ())


def gap_targets(found: Found) -> list[Target]:
    """With one step in flight, as it is on GPUs by default."""
    asked = [(one.config["device"], one.value / 100) for one in found.where(way=in_flight(1))]
    name = "Device waits for host, one step in flight"
    return [at_most(name, f"≤ {MOST_GAP:.0%} of a step", asked, MOST_GAP, ".1%")]


def gap_page(records: Sequence[Record], site: Site) -> Report:
    """Section and target."""
    found = Found(records)
    text = [GAP_TEXT] if site.gpus else [GAP_STAND_IN, GAP_TEXT]
    mark = "" if site.gpus else " (emulated)"
    rows = [
        (one.config["way"], f"{one.value:.1f} %", f"{one.config['step_ms']:.2f}", str(one.config["device"]))
        for one in found
    ]
    table = Table(("Steps", f"Device waits for host{mark}", "Step, ms", "Trained on"), rows)
    return Report(GAP_TITLE, [], gap_targets(found), [Section(GAP_TITLE, text, [], [table])])


def rounds_of(ways: Sequence[str], passes: int) -> list[tuple[str, str]]:
    """Each way with a name for each of its jobs, there and back: A B, B A."""
    counts = dict.fromkeys(ways, 0)
    found = []
    for way in there_and_back(list(ways), passes):
        found.append((way, f"{way.replace(' ', '-')}-{counts[way]}"))
        counts[way] += 1
    return found


def timed_rounds(
    site: Site, title: str, jobs: Mapping[str, Job], stand_in: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Trains each job in turn in one process, as often as there are passes; by way what each told."""
    how = site.settings
    order = rounds_of(list(jobs), how.passes)

    def run() -> list[list[Any]]:
        named = [_named(jobs[way], name) for way, name in order]
        found = train_in_turn(site, 1, named, stand_in=stand_in)
        return [[way, _told(found[name], jobs[way].batch)] for way, name in order]

    told: dict[str, list[dict[str, Any]]] = {}
    for way, one in site.results.once(title, run):
        tell(f"{title}: {way}: {one['rate']:,.0f} examples/s")
        told.setdefault(way, []).append(one)
    return told


def _named(job: Job, name: str) -> Job:
    return Job(**{**vars(job), "name": name})


def _told(trained: Trained, batch: int) -> dict[str, Any]:
    losses = list(trained.losses)
    last = losses[-max(1, round(LAST_LOSSES * len(losses))) :]
    return {
        "rate": batch / trained.step_secs,
        "first_loss": losses[0],
        "last_loss": sum(last) / len(last),
        "places": sorted(set(trained.places)),
        "device": trained.device,
    }


def rate_records(title: str, prefix: str, told: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Record]:
    """Examples a second by way; the first way is the others' baseline. Pure."""
    first = next(iter(told))
    found: list[Record] = []
    for way, runs in told.items():
        rates = [one["rate"] for one in runs]
        against = {} if way == first else {first: [one["rate"] for one in told[first]]}
        config = {"part": title, "way": way, **runs[-1]}
        found += records_of(BENCHMARK, "examples/s", [Sample(f"{prefix}, {way}", rates, against, config=config)])
    return found


def measure_input(site: Site) -> None:
    """Batches that are copied to the device ahead of their step, and by it."""
    how, results = site.settings, site.results
    batch = INPUT_BATCH if site.gpus else how.batch
    write_data(site.folder, [MLP], max(how.rows, 2 * batch))
    jobs = {
        BY_THE_STEP: Job("", MLP, batch, (how.timed_steps,), by_the_step=True),
        AHEAD: Job("", MLP, batch, (how.timed_steps,)),
    }

    def records() -> list[Record]:
        return rate_records(INPUT_TITLE, "input", timed_rounds(site, INPUT_TITLE, jobs, stand_in=not site.gpus))

    results.add(INPUT_TITLE, results.attempt(INPUT_TITLE, records) or ())


def is_ahead(record: Record, stand_in: bool) -> bool:
    """Whether all batches lay on the device, or on what stands in for it, when their steps took them."""
    wanted = "CPU:1" if stand_in else "GPU:0"
    return record.config["places"] == [wanted]


def input_page(records: Sequence[Record], site: Site) -> Report:
    """Section and targets; on cores none for the speed."""
    found = Found(records)
    ahead, by_step = (found.one(way=way) for way in (AHEAD, BY_THE_STEP))
    targets = []
    if ahead is not None:
        places = ", ".join(ahead.config["places"])
        wanted = "each on the device before its step"
        targets.append(
            Target("Batches are copied ahead", wanted, [("they lay on", places, is_ahead(ahead, not site.gpus))])
        )
        if site.gpus:
            name = "Examples/s with batches copied ahead, over copied by the step"
            targets.append(at_least(name, f"≥ {LEAST_INPUT}", [("MLP", ahead.ratio)], LEAST_INPUT))
    batch = INPUT_BATCH if site.gpus else site.settings.batch
    text = [INPUT_TEXT.format(batch=batch)]
    rows = [
        (one.config["way"], ", ".join(one.config["places"]), f"{one.value:,.0f}", words.number(one.ratio, 3))
        for one in (by_step, ahead)
        if one is not None
    ]
    table = Table(("Batches", "They lay on", "Examples/s", "Ratio"), rows, names=2)
    section = Section(INPUT_TITLE, text if site.gpus else [INPUT_STAND_IN, *text], [], [table])
    return Report(INPUT_TITLE, [], targets, [section])


def measure_precision(site: Site) -> None:
    """float32, bfloat16, and on GPUs float16."""
    how, results = site.settings, site.results
    model, batch = (LARGE, PRECISION_BATCH) if site.gpus else (MLP, how.batch)
    write_data(site.folder, [model], max(how.rows, 2 * batch))
    dtypes = (FLOAT32, BFLOAT16, FLOAT16) if site.gpus else (FLOAT32, BFLOAT16)
    jobs = {
        dtype: Job("", model, batch, (how.timed_steps,), run={} if dtype == FLOAT32 else {"mixed_precision": dtype})
        for dtype in dtypes
    }

    def records() -> list[Record]:
        found = rate_records(PRECISION_TITLE, "precision", timed_rounds(site, PRECISION_TITLE, jobs))
        return [_with(one, model=model, batch=batch, steps=how.timed_steps) for one in found]

    results.add(PRECISION_TITLE, results.attempt(PRECISION_TITLE, records) or ())


def _with(record: Record, **more: Any) -> Record:
    return Record(**{**vars(record), "config": {**record.config, **more}})


def loss_part(float32: Record, other: Record) -> tuple[str, str, bool]:
    """Of a target: how far the last loss is from float32's, as a part of that; float32 itself has to have trained."""
    own, wanted = other.config["last_loss"], float32.config["last_loss"]
    trains = all(one.config["last_loss"] < LOSS_KEPT * one.config["first_loss"] for one in (float32, other))
    off = abs(own - wanted) / abs(wanted)
    value = f"{off:.1%}" if trains else f"{off:.1%}, but the loss does not fall"
    return other.config["way"], value, trains and off <= MOST_LOSS


def precision_page(records: Sequence[Record], site: Site) -> Report:
    """Section and targets; on cores none for the speed."""
    found = Found(records)
    float32, targets = found.one(way=FLOAT32), []
    others = [one for one in found if one.config["way"] != FLOAT32]
    if float32 is not None and others:
        parts = [loss_part(float32, one) for one in others]
        targets.append(Target("Mixed precision trains as float32 does", f"last loss within {MOST_LOSS:.0%}", parts))
        if site.gpus:
            rates = [(one.config["way"], one.ratio) for one in others]
            name = "Examples/s with mixed precision, over float32"
            targets.append(at_least(name, f"≥ {LEAST_PRECISION:g}", rates, LEAST_PRECISION))
    about = next(iter(found)).config
    named = {name: about[name] for name in ("model", "batch", "steps")}
    text = [PRECISION_TEXT.format(**named, kept=LOSS_KEPT)]
    rows = [
        (one.config["way"], *(f"{one.config[key]:.4g}" for key in ("first_loss", "last_loss")), f"{one.value:,.0f}")
        for one in found
    ]
    figures = [Bars("Examples/s; float32 is 1", [Bar(one.config["way"], one.ratio) for one in others])]
    table = Table(("Computes in", "First loss", "Last loss", "Examples/s"), rows)
    section = Section(PRECISION_TITLE, text if site.gpus else [PRECISION_STAND_IN, *text], figures, [table])
    return Report(PRECISION_TITLE, [], targets, [section])
