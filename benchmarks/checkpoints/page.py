"""The report page: its words, charts and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from support.charts import OTHER_COLOUR, OUR_COLOUR, TARGET_COLOUR, Bar, bars, legend
from support.report import Report, Section, Table

from checkpoints.baselines import MEMCPY, NO_SAVE, RAW_WRITE, TF_RESTORE
from checkpoints.cases import Settings
from checkpoints.results import OURS, Measured, Results, What
from checkpoints.targets import STALL_MEMCPY, targets

MOST_SHOWN = 20.0
UNIT: Mapping[What, str] = {
    "stall": MEMCPY,
    "stall and next step": NO_SAVE,
    "write": RAW_WRITE,
    "restore": TF_RESTORE,
}
TITLES: Mapping[What, str] = {
    "stall": "Stall of a save",
    "stall and next step": "Stall and the step after it",
    "write": "Time to a committed checkpoint",
    "restore": "Restore",
}
ABOUT: Mapping[What, str] = {
    "stall": "What the training thread waits for. Ours is the copy of all variables into memory that is kept for it, "
    "and handing it to the thread that writes, which is idle. “memcpy” copies as many bytes between two touched "
    "buffers on one core; “by variable” does so in one call of np.copyto a variable. For tf.train.Checkpoint async it "
    "is the call, with nothing in flight; for the others all of the writing, without fsync. All of them write "
    "the optimizer's variables, too. Before each run, one training step is made.",
    "stall and next step": "The stall and the training step that follows, together; “no save” is the step alone. The "
    "call of tf.train.Checkpoint async copies nothing: it keeps the variables' memory, and so the next step makes "
    "every variable anew, in fresh memory, while it is in its call that ours copies.",
    "write": "From a snapshot to the checkpoint in place under its name: the check for NaN, state.h5 and fsync, the "
    "manifest with its SHA-256 digests and fsync, fsync of the folder, rename; removing the checkpoint before is in "
    "it. “write and fsync” writes as many bytes to one new file, “sha256” digests as many in memory; “TF write "
    "and fsync” is tf.train.Checkpoint, and then fsync of its files, which it leaves out.",
    "restore": "Ours reads the checkpoint twice, first to check each digest, then into memory, and assigns the "
    "variables. tf.train.Checkpoint checks a CRC-32 of each variable as it reads, load_weights nothing. The files lie "
    "in the page cache, as after a restart on the node that wrote them.",
}


@dataclass(frozen=True)
class Parts:
    """Makes the parts of the page from what was measured."""

    results: Results
    settings: Settings

    def section(self, what: What) -> Section:
        charts = [self._chart(size.name, what) for size in self.settings.sizes]
        rows = [row for size in self.settings.sizes for row in self._rows(size.name, what)]
        header = ("State", "Way", "ms", "fastest to slowest", "GB/s", f"x {UNIT[what]}")
        shown = f"Bars are times; 1 is {UNIT[what]}. Bars beyond {MOST_SHOWN:g} are cut off."
        colours = [(OUR_COLOUR, OURS), (OTHER_COLOUR, "others")]
        if what == "stall":
            colours.append((TARGET_COLOUR, "target"))
        return Section(TITLES[what], (ABOUT[what], shown), charts, legend(colours), [Table(header, rows, names=2)])

    def _chart(self, size: str, what: What) -> str:
        found = self.results.of(size, what)
        unit = self.results.get(size, what, UNIT[what])
        if unit is None:
            return ""
        entries = [
            Bar(
                one.case.way,
                one.median / unit.median,
                OUR_COLOUR if one.case.way.startswith(OURS) else OTHER_COLOUR,
                STALL_MEMCPY if what == "stall" and one.case.way == OURS else None,
            )
            for one in found
        ]
        top = min(MOST_SHOWN, max(1.0, *(entry.value or 0 for entry in entries)))
        return bars(f"State of {size}", entries, top)

    def _rows(self, size: str, what: What) -> Iterator[tuple[str, ...]]:
        unit = self.results.get(size, what, UNIT[what])
        for one in self.results.of(size, what):
            yield size, one.case.way, *_numbers(one), f"{one.median / unit.median:.3g}" if unit else ""

    def steps(self) -> Section:
        rows = [
            (one.size, way, f"{median(rates):.2f}", f"{min(rates):.2f} to {max(rates):.2f}", f"{one.lost(rates):.1%}")
            for one in self.results.steps
            for way, rates in (
                ("no saves", one.alone),
                ("a save in flight", one.writing),
                ("a save in flight, stalls counted", one.saving),
                ("no saves, another process busy", one.beside),
            )
        ]
        saves = ", ".join(f"{one.saves}" for one in self.results.steps)
        text = (
            "The training step of a job (hpc_train.engine.train_step), TensorFlow on one thread, so that another "
            "core is free for the thread that writes. A save begins as soon as the one before is committed, "
            f"{saves} in all: far more often than any job saves. “in flight” stops the clock during the stalls, which "
            "are measured above. The busy process runs an empty loop: what it costs, the machine's cores cost each "
            "other, by what they share."
        )
        header = ("State", "Meanwhile", "steps/s", "slowest to fastest", "lost")
        return Section("Training beside a save", (text,), tables=[Table(header, rows, names=2)])

    def states(self) -> Section:
        rows = [(name, f"{nbytes:,}", f"{count}") for name, nbytes, count in self.results.states]
        text = "Dense layers with Adam, in float32: weights, two slots of each, the step and the learning rate."
        return Section("States", (text,), tables=[Table(("State", "bytes", "variables"), rows)])


def _numbers(found: Measured) -> tuple[str, ...]:
    low, high = 1e3 * min(found.secs), 1e3 * max(found.secs)
    return f"{1e3 * found.median:.3g}", f"{low:.3g} to {high:.3g}", f"{found.gb_per_sec:.3g}"


def make_page(results: Results, settings: Settings, facts: Mapping[str, object]) -> Report:
    """The whole report."""
    parts = Parts(results, settings)
    return Report(
        "Checkpoints: against memcpy, tf.train.Checkpoint and Keras",
        list(_summary(settings)),
        targets(results, settings),
        [*(parts.section(what) for what in TITLES), parts.steps(), parts.states()],
        facts,
    )


def _summary(settings: Settings) -> Iterator[str]:
    if settings.quick:
        yield "A quick run of tiny models: it tries the benchmark, and none of its figures mean anything."
    yield (
        "What a checkpoint costs the training that it is taken of, how long it takes until it is safe on the disk, and "
        "how long until it is back in the variables."
    )
    repeats = ", ".join(f"{2 * size.rounds} ({size.name})" for size in settings.sizes)
    yield (
        f"All ways of a group ran in turn (A B B A) after a warm-up; medians of so many repeats: {repeats}. Ratios "
        "compare with what ran in the same turns. TensorFlow has one thread, as on a rank that shares a node with "
        "others."
    )
