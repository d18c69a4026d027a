"""The numbers to reach, and the report. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from support.drawing import Bar, Bars
from support.page import Report, Section, Table, Target, at_least, numbers
from support.records import Found

from peers import settings as of
from peers.jobs import SHUFFLE
from peers.measuring import ONE_PROCESS, OTHERS, WEAK, Contestant, same_flags_rival
from peers.models import CNN, DESCRIPTIONS, MLP
from peers.settings import DEFAULT_FLAGS, DISTRIBUTE, FIT, NO_EXCHANGE, OURS, PLAIN, SAME_FLAGS, Settings

DEFAULT_FLAGS_RATIO = 1.4
SAME_FLAGS_RATIO = 0.99
FIT_RATIO = 0.98
DISTRIBUTE_RATIO = 1.8
WEAK_SCALING: Mapping[str, float] = {CNN: 0.88, MLP: 0.78}
"""Examples a second of two ranks, as a part of twice those of one rank that runs no allreduce."""
RANKS = 2
"""What the targets for several ranks are meant for."""
TIMES = "times as many examples/s"

HOW = (
    "All models train in float32 with Keras's SGD and momentum (tf.estimator with TensorFlow's own), on rows that they "
    f"can learn from: a way whose loss does not fall below {of.LOSS_KEPT:.0%} of its first one is not compared. Each "
    "rank has one thread, but tf.estimator's pool that runs operations side by side, which is TensorFlow's own.",
    "The others' batches were cut beforehand and lie in memory, out of a tf.data pipeline; this package reads HDF5 "
    f"shards of float32 rows from the page cache (shuffle: {SHUFFLE}). hpc_train is a job as users start it; a "
    "hook of the job takes the time.",
)
PEERS_TABLE = Table(
    ("Way", "Program", "Settings"),
    [
        (OURS, "hpc-train train job.yaml under mpirun", "its own"),
        (DEFAULT_FLAGS, "tf.function with grouped_allreduce in a Python loop", "Horovod's and MPI's defaults"),
        (SAME_FLAGS, "the same", "those that this package makes by itself"),
        (PLAIN, "the same without the allreduce and without MPI, on one rank", ""),
        (NO_EXCHANGE, "the same on several ranks that run at once, each by itself", ""),
        (
            FIT,
            "model.fit with a tf.data pipeline; no metrics, no progress bar",
            "without a GPU jit_compile=False: faster there",
        ),
        (
            DISTRIBUTE,
            "MultiWorkerMirroredStrategy, strategy.run in a tf.function",
            "RING, on GPUs NCCL; one thread in both pools",
        ),
        (of.ESTIMATOR, "train_and_evaluate; one more process is the server; asynchronous", "TensorFlow 2.15"),
    ],
    names=3,
)
PROCESS_TEXT = (
    "Blocks of about {block:g} s of the job's own loop and of as many steps of the rival's are made in turn by one "
    "process on each rank, with the same threads and settings (A B, B A; {pairs} pairs). One step in ten is not "
    "counted after each change. On one rank neither runs an allreduce."
)
OTHER_TEXT = (
    "Each repeat is a run of its own, in turn (A B, B A), of as many steps as hpc_train makes in {secs:g} s, measured "
    "inside the program after its first steps. tf.estimator's examples a second are those of all workers. Ranks that "
    "exchange nothing are no bound on hpc_train, whose updates of the weights are not Keras's."
)
WEAK_TEXT = (
    "Examples a second of all ranks, as a part of so many times those of one rank that runs no allreduce; from the "
    "same runs. What ranks that exchange nothing lack to 1 they take from each other by sharing cores, caches and "
    "memory."
)
NAMES = {"Model": "model", "Ranks": "ranks", "Way": "way"}


def ratio(found: Found, model: str, own: Contestant, other: Contestant) -> float | None:
    """Of the examples a second of all ranks together."""
    return found.ratio(str(other), model=model, way=own.way, ranks=own.ranks)


def weak_scaling(found: Found, model: str, own: Contestant, alone: str) -> float | None:
    """A way's examples a second as a part of so many times those of the way `alone` on one rank."""
    times = ratio(found, model, own, Contestant(alone, 1))
    return None if times is None else times / own.ranks


def targets(found: Found) -> list[Target]:
    """All targets, in the order of the issue that set them."""
    pairs, weak, others = (found.where(kind=kind) for kind in (ONE_PROCESS, WEAK, OTHERS))
    ours, one, default = Contestant(OURS, RANKS), Contestant(OURS, 1), Contestant(DEFAULT_FLAGS, RANKS)
    same = [
        (f"{model}, {n} rank{'s' if n > 1 else ''}", ratio(pairs, model, Contestant(OURS, n), same_flags_rival(n)))
        for model in pairs.each("model")
        for n in (1, RANKS)
    ]
    fit = [(model, ratio(pairs, model, one, Contestant(FIT, 1))) for model in pairs.each("model")]
    of_default = [(model, ratio(weak, model, ours, default)) for model in (MLP, CNN)]
    distribute = [(model, ratio(others, model, ours, Contestant(DISTRIBUTE, RANKS))) for model in others.each("model")]
    parts = [
        (model, f"{part:.3f}", part >= least)
        for model, least in WEAK_SCALING.items()
        if (part := weak_scaling(weak, model, ours, OURS)) is not None
    ]
    wanted = ", ".join(f"≥ {least} ({model})" for model, least in WEAK_SCALING.items())
    return [
        _target(f"Against {DEFAULT_FLAGS}, 2 ranks", of_default, DEFAULT_FLAGS_RATIO),
        _target(f"Against {SAME_FLAGS}, 1 and 2 ranks", same, SAME_FLAGS_RATIO),
        _target(f"Against {FIT}, 1 rank", fit, FIT_RATIO),
        _target(f"Against {DISTRIBUTE}, 2 ranks", distribute, DISTRIBUTE_RATIO),
        Target("Weak scaling, 2 ranks against one that runs no allreduce", wanted, parts),
    ]


def _target(what: str, found: list[tuple[str, float | None]], least: float) -> Target:
    return at_least(what, f"≥ {least} {TIMES}", found, least, ".3f")


def make_page(found: Found, settings: Settings) -> Report:
    """The whole report."""
    pairs, weak, others = (found.where(kind=kind) for kind in (ONE_PROCESS, WEAK, OTHERS))
    wanted = {PLAIN: SAME_FLAGS_RATIO, SAME_FLAGS: SAME_FLAGS_RATIO, FIT: FIT_RATIO, DISTRIBUTE: DISTRIBUTE_RATIO}
    sections = []
    if pairs:
        text = PROCESS_TEXT.format(block=settings.block_secs, pairs=settings.pairs)
        chart = Bars("Examples/s of hpc_train; the rival is 1", list(_bars(pairs, wanted)))
        sections.append(Section("The same work, in the same process", [text], [chart], [numbers(pairs, NAMES)]))
    if weak or others:
        text = OTHER_TEXT.format(secs=settings.turn_secs)
        alike = Found(
            one for one in (*weak, *others) if one.baseline and one.ranks > 1 and ", 1 rank" not in one.baseline
        )
        chart = Bars("Examples/s of hpc_train; the other is 1", list(_bars(alike, {**wanted, SAME_FLAGS: None})))
        tables = [numbers(own, NAMES, {"cores": "cores"}) for own in (weak, others) if own]
        sections.append(Section("Against other programs", [text], [chart], tables))
    if weak:
        bars = [
            Bar(
                f"{model}, {n}: {way}",
                part,
                WEAK_SCALING.get(model) if way == OURS and n == RANKS else None,
                way == OURS,
            )
            for model, n in weak.each("model", "ranks")
            for way, alone in ((OURS, OURS), (SAME_FLAGS, PLAIN), (DEFAULT_FLAGS, PLAIN), (NO_EXCHANGE, PLAIN))
            if n > 1 and (part := weak_scaling(weak, model, Contestant(way, n), alone)) is not None
        ]
        sections.append(Section("Weak scaling", [WEAK_TEXT], [Bars("Efficiency", bars)]))
    models = Table(("Model", ""), list(DESCRIPTIONS.items()), names=2)
    sections.append(Section("How it was measured", HOW, tables=[models, PEERS_TABLE]))
    summary = (
        "What training by a job of this package costs beside loops written by hand and other programs that train the "
        f"same models, {of.BATCH} rows a rank and step. All numbers are ratios to what ran in turn with it on the same "
        "machine."
    )
    return Report("This package's loop against what would be used instead", [summary], targets(found), sections)


def _bars(found: Found, wanted: Mapping[str, float | None]) -> Iterator[Bar]:
    """Of ours against each baseline."""
    for one in found.where(way=OURS):
        way = (one.baseline or "").rpartition(", ")[0]
        model, least = one.config["model"], wanted.get(way)
        if way == DEFAULT_FLAGS and model in WEAK_SCALING:
            least = DEFAULT_FLAGS_RATIO
        yield replace(Bar(f"{model}, {one.ranks}: {way.partition(',')[0]}", one.ratio, least))
