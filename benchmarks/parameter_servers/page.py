"""The report page: its words, charts and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from support.charts import OTHER_COLOUR, OUR_COLOUR, TARGET_COLOUR, Bar, bars, legend
from support.report import Report, Section, Table

from parameter_servers.results import Group, Measured, Results
from parameter_servers.settings import Settings
from parameter_servers.targets import (
    MEMCPY_RATIO,
    OPTIMIZER_SHARE,
    TRAINING_RATIO,
    optimizer_bound,
    optimizer_share,
    targets,
)
from parameter_servers.training import SLOW_WORKER, SLOWER, TO_LOSS, TRAINING, slowed
from parameter_servers.ways import (
    APPLIED,
    ASYNC,
    MEMCPY,
    ONE_HOST_TCP,
    ONE_NODE,
    OURS,
    PLAIN_HOROVOD,
    SEND_RECV,
    SYNC,
    TWO_HOSTS,
    WITHOUT_CMA,
)

MOST_BARS = 12
TCP_TEXT = (
    "The same over TCP through the loopback interface, where a server has to help with every push and pull. “two "
    "hosts” are the two nodes of a private Slurm on this machine, “one host” are processes that are told to use TCP. "
    "Nothing is demanded here. Bars are shares of Send/Recv, which goes the same way."
)


@dataclass(frozen=True)
class Parts:
    """Makes the parts of the page from what was measured."""

    results: Results
    settings: Settings

    def transfers(self) -> Section:
        how = self.settings.node
        text = (
            "One worker pushes a gradient, waits until the server has taken it and has published its parameters, and "
            "pulls them; the server has no optimizer. Bytes of gradient and parameters a second, as a share of memcpy "
            "of as many bytes by the worker, which is 1. Send/Recv moves as many between the same ranks, two-sided: "
            "the worker sends, the server receives and sends, the worker receives. Each message is one copy where "
            "the kernel's cross memory attach may be used (CMA), and two without.",
            "The bytes are copied three times, one after the other: by the push, by the server that publishes, by the "
            f"pull. So no more than 0.67 can be reached. {2 * how.rounds} repeats of about "
            f"{how.run_bytes / 1e6:.0f} MB each. What was pushed has to come back each time.",
        )
        groups = [group for group in self.results.groups("transfer") if group.where in (ONE_NODE, WITHOUT_CMA)]
        return self._compared("Push and pull on one node", text, groups, MEMCPY)

    def tcp(self) -> Section:
        groups = [group for group in self.results.groups("transfer") if group.where in (TWO_HOSTS, ONE_HOST_TCP)]
        return self._compared("Push and pull over TCP", (TCP_TEXT,), groups, SEND_RECV)

    def _compared(self, title: str, text: Sequence[str], groups: Sequence[Group], unit: str) -> Section:
        """Charts of a place each, in which the way `unit` is 1; all numbers in a table."""
        shown = [(OURS, OUR_COLOUR), (SEND_RECV, OTHER_COLOUR)][: 2 if unit == MEMCPY else 1]
        colours = [(colour, way) for way, colour in shown]
        charts = []
        for where, servers in dict.fromkeys((group.where, group.servers) for group in groups):
            goal = MEMCPY_RATIO if where == ONE_NODE else None
            entries = [
                Bar(
                    f"{group.size}, {way}",
                    self.results.ratio(group, way, unit),
                    colour,
                    goal if way == OURS else None,
                    gap_above=way == OURS,
                )
                for group in groups
                if (group.where, group.servers) == (where, servers)
                for way, colour in shown
            ]
            charts.append(bars(f"{where}, {_servers(servers)}", entries, _top(entries)))
        if unit == MEMCPY:
            colours.append((TARGET_COLOUR, "target"))
        return Section(title, text, charts, legend(colours), [self._table(groups, SEND_RECV)])

    def _table(self, groups: Sequence[Group], other: str, fold: str = "") -> Table:
        header = ("Where", "Parameters", "Servers", "Way", "GB/s", "slowest to fastest", "x memcpy", f"x {other}")
        rows = [
            (
                *(group.where, group.size, f"{group.servers}", found.way),
                *_numbers(found),
                *(f"{self.results.ratio(group, found.way, baseline) or 0:.3g}" for baseline in (MEMCPY, other)),
            )
            for group in groups
            for found in self.results.of(group)
        ]
        return Table(header, rows, names=4, fold=fold)

    def optimizer(self) -> Section:
        text = (
            "The same, with Keras's SGD with momentum applied by the server to each gradient. “apply alone” is that, "
            "on a gradient that lies in the mailbox, in bytes of parameters a second. If push and pull cost a memcpy "
            "each and nothing else were done but to apply, 2 / (2 + apply / memcpy) of memcpy would be reached: the "
            "bound. Publishing is a third copy, and not in it.",
        )
        groups = self.results.groups("transfer, SGD")
        entries: dict[int, list[Bar]] = {}
        shares = []
        for group in groups:
            share, bound = optimizer_share(self.results, group), optimizer_bound(self.results, group)
            if share is not None and bound is not None:
                own = entries.setdefault(group.servers, [])
                own.append(Bar(group.size, share, OUR_COLOUR, OPTIMIZER_SHARE))
                of_memcpy = share * bound
                names = (group.size, f"{group.servers}")
                shares.append((*names, f"{2 / bound - 2:.3g}", f"{bound:.3g}", f"{of_memcpy:.3g}", f"{share:.3g}"))
        charts = [bars(f"Share of the bound, {_servers(n)}", own, _top(own)) for n, own in entries.items()]
        header = ("Parameters", "Servers", "apply / memcpy", "bound", "x memcpy", "share of the bound")
        tables = [Table(header, shares, names=2), self._table(groups, APPLIED, fold="All numbers")]
        colours = legend([(OUR_COLOUR, OURS), (TARGET_COLOUR, "target")])
        return Section("Push and pull with SGD and momentum", text, charts, colours, tables)

    def training(self) -> Section:
        how = self.settings.training
        text = (
            "An MLP 784-1024-1024-10, SGD with momentum, batches of 64 a rank, one thread each. Plain Horovod: two "
            "ranks, a grouped_allreduce in a tf.function, default settings, batches that wait in memory. The others "
            "are jobs of this package: sync with two ranks, async with one server and two workers, which share the "
            f"cores. Each repeat is a job of its own over {how.examples:,} examples, the first {how.warm_up_secs:g} s "
            "of which are not counted.",
        )
        found = self.results.of(TRAINING)
        entries = []
        for one in found:
            goal = TRAINING_RATIO if one.way == ASYNC else None
            colour = OTHER_COLOUR if one.way == PLAIN_HOROVOD else OUR_COLOUR
            entries.append(Bar(one.way, self.results.ratio(TRAINING, one.way, PLAIN_HOROVOD), colour, goal))
        charts = [bars("Examples a second; plain Horovod is 1", entries, _top(entries))] if entries else []
        colours = legend([(OUR_COLOUR, "hpc_train"), (OTHER_COLOUR, "baseline"), (TARGET_COLOUR, "target")])
        header = ("Way", "ranks", "examples/s", "slowest to fastest", "x plain Horovod", "x sync")
        rows = [
            (one.way, f"{one.ranks}", *_numbers(one), *(self._ratio(one, other) for other in (PLAIN_HOROVOD, SYNC)))
            for one in found
        ]
        return Section("Training", text, charts, colours, [Table(header, rows)])

    def _ratio(self, found: Measured, other: str) -> str:
        ratio = self.results.ratio(found.group, found.way, other)
        return "" if ratio is None else f"{ratio:.3f}"

    def slow_worker(self) -> Section:
        text = (
            f"One worker sleeps after each of its steps, {SLOWER} times as long as a step takes (--debug-delay), so it "
            "makes a quarter of the steps it would. Bars compare each way with itself without that.",
        )
        entries, rows = [], []
        for found in self.results.of(SLOW_WORKER):
            alike = found.way.removesuffix(slowed(""))
            kept = self.results.ratio(SLOW_WORKER, found.way, alike)
            if alike != found.way:
                entries.append(Bar(alike, kept, OUR_COLOUR))
            delay = f"{found.config['delay_ms']}"
            rows.append((found.way, delay, *_numbers(found), "" if alike == found.way else f"{kept:.3f}"))
        charts = [bars("Examples/s kept with a slow worker", entries, 1.0)] if entries else []
        header = ("Way", "sleeps, ms", "examples/s", "slowest to fastest", "x without")
        return Section("One slow worker", text, charts, tables=[Table(header, rows)])

    def to_loss(self) -> Section:
        loss = self.settings.training.loss
        text = (
            f"Seconds of training until the mean training loss of three records in metrics.jsonl falls below {loss:g}, "
            "from the first record on, in the jobs above. A step of sync is one update made of two batches; async "
            "makes two of them, each of a gradient that may be stale, at half the learning rate.",
        )
        header = ("Way", "s", "fastest to slowest", "x sync")
        rows = [(one.way, *_numbers(one), self._ratio(one, SYNC)) for one in self.results.of(TO_LOSS)]
        return Section("Time to a given loss", text, tables=[Table(header, rows)])

    def staleness(self) -> Section:
        text = (
            "How many updates were made between the parameters that a gradient was computed at and its own, as a share "
            "of all gradients of the asynchronous jobs above.",
        )
        charts = [self._histogram(way, counted) for way, counted in self.results.staleness.items()]
        rows = [
            (way, f"{counted.total():,}", f"{_mean(counted):.2f}", f"{max(counted)}")
            for way, counted in self.results.staleness.items()
        ]
        header = ("Way", "gradients", "mean staleness", "highest")
        return Section("Staleness", text, charts, tables=[Table(header, rows)])

    def _histogram(self, way: str, counted: Counter[int]) -> str:
        total = counted.total()
        shown = [(f"{n}", counted[n]) for n in sorted(counted)]
        if len(shown) > MOST_BARS:
            rest = sum(count for _, count in shown[MOST_BARS - 1 :])
            shown = [*shown[: MOST_BARS - 1], (f"{shown[MOST_BARS - 1][0]} and more", rest)]
        return bars(way, [Bar(label, count / total, OUR_COLOUR) for label, count in shown], 1.0)

    def idle(self) -> Section:
        text = (
            "The share of a core that a server takes while it waits for gradients: “bare” serves an array, “of a job” "
            "is rank 0 of a training job whose only worker sleeps. Of several servers, the one that takes the most.",
        )
        rows = [
            (
                found.way,
                group.where,
                f"{group.servers}",
                f"{found.median:.1%}",
                " to ".join(f"{s:.1%}" for s in found.spread),
            )
            for group in self.results.groups("idle server")
            for found in self.results.of(group)
        ]
        header = ("Server", "Where", "Servers", "of a core", "least to most")
        return Section("A server that waits", text, tables=[Table(header, rows, names=2)])


def _numbers(found: Measured) -> tuple[str, str]:
    low, high = found.spread
    return _number(found.median), f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _mean(counted: Counter[int]) -> float:
    return sum(number * count for number, count in counted.items()) / counted.total()


def _servers(count: int) -> str:
    return "one server" if count == 1 else f"{count} servers"


def _top(entries: Sequence[Bar]) -> float:
    return max(1.0, *(value for entry in entries for value in (entry.value or 0, entry.target or 0)))


def make_page(results: Results, settings: Settings, facts: Mapping[str, object]) -> Report:
    """The whole report."""
    parts = Parts(results, settings)
    sections = (
        ("transfer", parts.transfers),
        ("transfer, SGD", parts.optimizer),
        ("transfer", parts.tcp),
        ("training", parts.training),
        ("slow worker", parts.slow_worker),
        ("time to loss", parts.to_loss),
        ("training", parts.staleness),
        ("idle server", parts.idle),
    )
    return Report(
        "Parameter servers: against memcpy, Send/Recv and Horovod",
        list(_summary(results, settings)),
        targets(results),
        [make() for what, make in sections if results.groups(what)],  # type: ignore[arg-type]
        facts,
    )


def _summary(results: Results, settings: Settings) -> Iterator[str]:
    if settings.quick:
        yield "A quick run: it tries the benchmark, and none of its figures mean anything."
    yield (
        "How fast gradients get to parameter servers and parameters back, and what that makes of training, with and "
        "without a worker that is slower than the others."
    )
    yield (
        "All ways of a group ran in turn (A B B A); medians. Ratios compare with what ran in the same turns. Each rank "
        "has one thread, and shares the cores that are told below with the others."
    )
    for sentence in results.left_out:
        yield f"Not measured. {sentence}"
