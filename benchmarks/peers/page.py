"""The report: its words, charts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from support.charts import OTHER_COLOUR, OUR_COLOUR, TARGET_COLOUR, Bar, bars, legend
from support.records import Record
from support.report import Report, Section, Table

from peers.contestants import Contestant, Found, Ratio
from peers.models import DESCRIPTIONS
from peers.settings import (
    BATCH,
    DEFAULT_FLAGS,
    DISTRIBUTE,
    ESTIMATOR,
    FIT,
    NO_EXCHANGE,
    OURS,
    PLAIN,
    SAME_FLAGS,
    Settings,
)
from peers.targets import (
    DEFAULT_FLAGS_RATIO,
    DISTRIBUTE_RATIO,
    FIT_RATIO,
    RANKS,
    SAME_FLAGS_RATIO,
    WEAK_SCALING,
    targets,
    weak_scaling,
)
from peers.text import HOW, PEERS_TABLE, ways_text

HEADER = ("Model", "Ranks", "Against", "Ours, examples/s", "Theirs", "Ratio", "Middle half", "Repeats")


@dataclass(frozen=True)
class Parts:
    """Makes the parts of the page from what was measured."""

    pairs: Found
    weak: Found
    others: Found
    settings: Settings

    def one_process(self) -> Section:
        """Ours against the same loop by hand, and against fit."""
        compared = [
            (model, Contestant(OURS, ranks), Contestant(way, ranks), least)
            for model in self.pairs.models()
            for ranks in self.pairs.ranks()
            for way, least in ((PLAIN, SAME_FLAGS_RATIO), (SAME_FLAGS, SAME_FLAGS_RATIO), (FIT, FIT_RATIO))
        ]
        return Section(
            "The same work, in the same process",
            ways_text("one process", self.settings),
            [self._chart("Examples/s of hpc_train; the rival is 1", self.pairs, compared)],
            legend([(OUR_COLOUR, OURS), (TARGET_COLOUR, "wanted")]),
            [Table(HEADER, list(self._rows(self.pairs, compared)), names=3)],
        )

    def other_programs(self) -> Section:
        """Ours against what runs in processes of its own."""
        compared = [
            (model, Contestant(OURS, ranks), Contestant(way, ranks), least if ranks == RANKS else None)
            for model in dict.fromkeys([*self.weak.models(), *self.others.models()])
            for ranks in sorted({*self.weak.ranks(), *self.others.ranks()} - {1})
            for way, least in (
                (DEFAULT_FLAGS, DEFAULT_FLAGS_RATIO if model in WEAK_SCALING else None),
                (DISTRIBUTE, DISTRIBUTE_RATIO),
                (ESTIMATOR, None),
            )
        ]
        by_default = [one for one in compared if one[2].way == DEFAULT_FLAGS]
        rest = [one for one in compared if one[2].way != DEFAULT_FLAGS]
        charts = [
            self._chart(title, found, chosen)
            for title, found, chosen in (
                ("Against plain Horovod, default flags", self.weak, by_default),
                ("Against other programs", self.others, rest),
            )
            if any(found.ratio(model, own, other) for model, own, other, _ in chosen)
        ]
        rows = [*self._rows(self.weak, by_default), *self._rows(self.others, rest)]
        beside = [row for model in self.weak.models() for row in self._beside_no_exchange(model)]
        tables = [Table(HEADER, rows, names=3)]
        if beside:
            over = [f"{way} / default flags" for way in ("Ours", "Ranks that exchange nothing")]
            tables.append(Table(("Model", "Ranks", *over, "Ours / ranks that exchange nothing"), beside, 2))
        return Section(
            "Against other programs",
            ways_text("other programs", self.settings),
            charts,
            legend([(OUR_COLOUR, OURS), (TARGET_COLOUR, "wanted")]),
            tables,
        )

    def _beside_no_exchange(self, model: str) -> Iterator[tuple[str, ...]]:
        """Ours, and ranks that exchange nothing, against default flags; and ours against those ranks."""
        for ranks in self.weak.ranks():
            own = self.weak.ratio(model, Contestant(OURS, ranks), Contestant(DEFAULT_FLAGS, ranks))
            free = self.weak.ratio(model, Contestant(OURS, ranks), Contestant(NO_EXCHANGE, ranks))
            if own is not None and free is not None:
                yield (model, f"{ranks}", f"{own.median:.2f}", f"{own.median / free.median:.2f}", f"{free.median:.0%}")

    def weak_scaling(self) -> Section:
        """Several ranks against one that runs no allreduce."""
        ways = ((OURS, OURS), (SAME_FLAGS, PLAIN), (DEFAULT_FLAGS, PLAIN), (NO_EXCHANGE, PLAIN))
        charts, rows = [], []
        for model in self.weak.models():
            entries = []
            for ranks in (n for n in self.weak.ranks() if n > 1):
                for number, (way, alone) in enumerate(ways):
                    own = Contestant(way, ranks)
                    ratio = weak_scaling(self.weak, model, own, alone)
                    if ratio is None:
                        continue
                    least = WEAK_SCALING.get(model) if (way, ranks) == (OURS, RANKS) else None
                    label = way.removeprefix("plain Horovod, ") if way != NO_EXCHANGE else "no exchange"
                    colour = OUR_COLOUR if way == OURS else OTHER_COLOUR
                    entries.append(Bar(f"{ranks} ranks, {label}", ratio.median, colour, least, gap_above=number == 0))
                    both = self.weak.beside(model, own, Contestant(alone, 1))
                    assert both is not None, "there is a ratio"
                    rates = [f"{one.value:,.0f}" for one in both]
                    cores = [f"{one.config['cores']:.2f}" for one in both]
                    rows.append((model, f"{ranks}", way, *rates, *_spread(ratio), *cores, f"{both[0].repeats}"))
            charts.append(bars(model, entries, 1.0))
        header = (
            *("Model", "Ranks", "Way", "examples/s", "One rank alone", "Efficiency", "Middle half"),
            *("Cores a rank", "Cores of one alone", "Repeats"),
        )
        colours = legend([(OUR_COLOUR, OURS), (OTHER_COLOUR, "loops written by hand"), (TARGET_COLOUR, "wanted")])
        text = ways_text("weak scaling", self.settings)
        return Section("Weak scaling", text, charts, colours, [Table(header, rows, names=3)])

    @staticmethod
    def _chart(title: str, found: Found, compared: Sequence[tuple[str, Contestant, Contestant, float | None]]) -> str:
        entries, before = [], ""
        for model, own, other, least in compared:
            ratio = found.ratio(model, own, other)
            if ratio is not None:
                label = f"{model}, {own.ranks}: {_short(other.way)}"
                entries.append(Bar(label, ratio.median, OUR_COLOUR, least, gap_above=model != before and bool(before)))
                before = model
        top = max([1.0, *(max(entry.value or 0, entry.target or 0) for entry in entries)])
        return bars(title, entries, top)

    @staticmethod
    def _rows(
        found: Found, compared: Iterable[tuple[str, Contestant, Contestant, float | None]]
    ) -> Iterator[tuple[str, ...]]:
        for model, own, other, _ in compared:
            both, ratio = found.beside(model, own, other), found.ratio(model, own, other)
            if both is None or ratio is None:
                continue
            rates = [f"{one.value:,.0f}" for one in both]
            yield (model, f"{own.ranks}", other.way, *rates, *_spread(ratio), f"{both[0].repeats}")


def _spread(ratio: Ratio) -> tuple[str, str]:
    return f"{ratio.median:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}"


def _short(way: str) -> str:
    names = {PLAIN: "by hand", SAME_FLAGS: "by hand", DEFAULT_FLAGS: "Horovod", FIT: "fit"}
    return names.get(way, way.partition(",")[0])


def make_page(records: Iterable[Record], settings: Settings, left_out: Mapping[str, str]) -> Report:
    """The whole report; what was left out is told by the folder it is written to."""
    kept = list(records)
    pairs, weak, others = (Found(kept, kind) for kind in ("one process", "weak scaling", "other programs"))
    parts = Parts(pairs, weak, others, settings)
    made = [
        (pairs.models(), parts.one_process),
        ([*weak.models(), *others.models()], parts.other_programs),
        (weak.models(), parts.weak_scaling),
    ]
    models = Table(("Model", ""), [(name, DESCRIPTIONS[name]) for name in DESCRIPTIONS], names=2)
    return Report(
        "This package's loop against what would be used instead",
        [
            "What training by a job of this package costs beside loops written by hand and other programs that train "
            f"the same models, {BATCH} rows a rank and step. All numbers are ratios to what ran in turn with it on "
            "the same machine.",
            *([f"{len(left_out)} comparisons are missing: see “Not measured”."] if left_out else []),
        ],
        targets(kept),
        [
            *(make() for there, make in made if there),
            Section("How it was measured", HOW, tables=[models, PEERS_TABLE]),
        ],
    )
