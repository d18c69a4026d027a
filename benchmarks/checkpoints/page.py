"""The numbers to reach, and the report. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from support.drawing import Bar, Bars
from support.page import Report, Section, Target, at_most, numbers
from support.records import Found

from checkpoints.cases import IN_FLIGHT, NEXT_STEP, RESTORE, STALL, STEPS, WRITE
from checkpoints.contestants import KERAS_WEIGHTS, MEMCPY, NO_SAVE, OURS, RAW_WRITE, TF_RESTORE

STALL_MEMCPY = 2.0
STALL_KERAS, STALL_KERAS_SIZE = 0.5, "67 MB"
SLOW_DOWN = 0.1
MOST_SHOWN = 20.0

ABOUT: Mapping[str, tuple[str, str, str]] = {
    STALL: (
        "Stall of a save",
        MEMCPY,
        "What the training thread waits for. Ours is the copy of all variables into memory that is kept for it, and "
        "handing it to the thread that writes, which is idle. “by variable” is one call of np.copyto a variable. For "
        "tf.train.Checkpoint async it is the call; for the others all of the writing, without fsync. All of them write "
        "the optimizer's variables, too.",
    ),
    NEXT_STEP: (
        "Stall and the step after it",
        NO_SAVE,
        "“no save” is the step alone. The call of tf.train.Checkpoint async copies nothing: so the next step makes "
        "every variable anew, in fresh memory, while it is in its call that ours copies.",
    ),
    WRITE: (
        "Time to a committed checkpoint",
        RAW_WRITE,
        "From a snapshot to the checkpoint in place under its name: the check for NaN, state.h5 and fsync, the "
        "manifest with its SHA-256 digests and fsync, fsync of the folder, rename; removing the checkpoint before is "
        "in it. “write and fsync” writes as many bytes to one new file, “sha256” digests as many in memory.",
    ),
    RESTORE: (
        "Restore",
        TF_RESTORE,
        "Ours reads the checkpoint twice, first to check each digest, then into memory, and assigns the variables. "
        "tf.train.Checkpoint checks a CRC-32 of each variable, load_weights nothing. The files are in the page cache.",
    ),
}
SAVING = (
    "The training step of a job, TensorFlow on one thread. A save begins as soon as the one before is committed: far "
    "more often than any job saves. “in flight” stops the clock during the stalls, which are measured above. The busy "
    "process runs an empty loop: what it costs, the machine's cores cost each other, by what they share."
)
SUMMARY = (
    "What a checkpoint costs the training that it is taken of, how long it takes until it is safe on the disk, and how "
    "long until it is back in the variables. Models of dense layers with Adam, in float32.",
    "All ways of a group ran in turn (A B B A) after a warm-up; medians, and ratios of what ran beside each other. "
    "TensorFlow has one thread, as on a rank that shares a node with others.",
)


def targets(found: Found, sizes: Sequence[str]) -> list[Target]:
    """All targets, in the order of the issue that set them."""
    stalls = found.where(what=STALL, way=OURS)
    memcpy = [(size, stalls.ratio(MEMCPY, size=size)) for size in sizes]
    keras = [(STALL_KERAS_SIZE, stalls.ratio(KERAS_WEIGHTS, size=STALL_KERAS_SIZE))]
    lost = [(one.config["size"], 1 - (one.ratio or 0)) for one in found.where(what=STEPS, way=IN_FLIGHT)]
    what, most = "Steps lost while a save is in flight, TensorFlow on one core of two or more", f"≤ {SLOW_DOWN:.0%}"
    return [
        at_most("Stall of a save", f"≤ {STALL_MEMCPY:g} x memcpy of the state", memcpy, STALL_MEMCPY),
        at_most("Stall of a save", f"≤ {STALL_KERAS:g} x {KERAS_WEIGHTS}", keras, STALL_KERAS),
        at_most(what, most, lost, SLOW_DOWN, ".1%"),
    ]


def make_page(found: Found, sizes: Sequence[str], facts: Mapping[str, object]) -> Report:
    """The whole report."""
    sections = [_section(found.where(what=what), what) for what in ABOUT]
    steps = numbers(found.where(what=STEPS), {"State": "size", "Meanwhile": "way"}, {"saves": "saves"})
    sections.append(Section("Training beside a save", [SAVING], tables=[steps]))
    title = "Checkpoints: against memcpy, tf.train.Checkpoint and Keras"
    return Report(title, SUMMARY, targets(found, sizes), sections, facts)


def _section(found: Found, what: str) -> Section:
    title, unit, text = ABOUT[what]
    charts = []
    for size in found.each("size"):
        one = found.one(size=size, way=unit)
        assert one is not None, "measured with the others"
        bars = [
            Bar(
                record.config["way"],
                record.value / one.value,
                STALL_MEMCPY if (what, record.config["way"]) == (STALL, OURS) else None,
                record.config["way"].startswith(OURS),
            )
            for record in found.where(size=size).cases()
        ]
        charts.append(Bars(f"State of {size}: time, {unit} is 1", bars, MOST_SHOWN))
    shown = f"Bars are times; 1 is {unit}. Bars beyond {MOST_SHOWN:g} are cut off."
    return Section(
        title, [text, shown], charts, [numbers(found, {"State": "size", "Way": "way"}, {"GB/s": "gb_per_sec"})]
    )
