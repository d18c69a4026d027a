"""The numbers to reach, and the report. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from support.drawing import Bar, Bars
from support.page import Report, Section, Table, Target, at_least, numbers
from support.records import Found, Record

from parameter_servers import settings as of
from parameter_servers.cases import SLOWER
from parameter_servers.settings import MEMCPY, ONE_NODE, OURS, PLAIN_HOROVOD, SEND_RECV, Settings

MEMCPY_RATIO = 0.4
SEND_RECV_RATIO = 2.0
OPTIMIZER_SHARE = 0.8
TRAINING_RATIO = 1.12
IDLE_SHARE = 0.05
NAMES = {"Where": "where", "Parameters": "size", "Servers": "servers", "Way": "way"}

TRANSFER_TEXT = (
    "One worker pushes a gradient, waits until the server has taken it and has published its parameters, and pulls "
    "them; the server has no optimizer. Bytes of gradient and parameters a second, as a share of memcpy of as many "
    "bytes by the worker; three copies one after the other can reach 0.67. Send/Recv moves as many between the same "
    "ranks, two-sided: one copy where the kernel's cross memory attach may be used (CMA), two without."
)
OPTIMIZER_TEXT = (
    "The same, with Keras's SGD with momentum applied by the server to each gradient. “apply alone” is that, in bytes "
    "of parameters a second. If push and pull cost a memcpy each and nothing else were done but to apply, "
    "2 / (2 + apply / memcpy) of memcpy would be reached: the bound. Publishing is a third copy, and not in it."
)
TCP_TEXT = (
    "The same over TCP through the loopback interface. “two hosts” are the two nodes of a private Slurm on this "
    "machine, “one host” are processes that are set to use TCP. No target."
)
TRAINING_TEXT = (
    "An MLP 784-1024-1024-10, SGD with momentum, batches of 64 a rank, one thread each. Plain Horovod: two ranks with "
    "default settings. The others are jobs of this package: sync with two ranks, async with one server and two "
    "workers. Each repeat is a job of its own over {examples:,} examples, of which the first {secs:g} s do not count."
)
SLOW_TEXT = (
    f"One worker sleeps after each of its steps, {SLOWER} times as long as a step takes (--debug-delay), so it makes a "
    "quarter of the steps it would. Each way is compared with itself without that."
)
LOSS_TEXT = (
    "Seconds of training until the mean loss of three records in metrics.jsonl falls below {loss:g}, in the jobs "
    "above. A step of sync is one update made of two batches; async makes two of them, at half the learning rate."
)
STALENESS_TEXT = (
    "How many updates were made between the parameters that a gradient was computed at and its own, in all "
    "asynchronous jobs above."
)
IDLE_TEXT = (
    "The share of a core that a server takes while it waits for gradients: “bare” serves an array, “of a job” is rank "
    "0 of a training job whose only worker sleeps. Of several servers, the one that takes the most."
)
SUMMARY = (
    "How fast gradients get to parameter servers and parameters back, and what that makes of training, with and "
    "without a worker that is slower than the others.",
    "All ways of a group ran in turn (A B B A); medians, and ratios of what ran beside each other. Each rank has one "
    "thread, and shares the cores named below with the others.",
)


def optimizer_bound(found: Found) -> float | None:
    """What push and pull with an optimizer can reach at most, as a share of memcpy: 2 / (2 + apply / memcpy)."""
    memcpy, applied = found.one(way=MEMCPY), found.one(way=of.APPLIED)
    return 2 / (2 + memcpy.value / applied.value) if memcpy and applied else None  # of rates: not of times


def optimizer_share(found: Found) -> float | None:
    """Which part of that was reached."""
    reached, bound = found.ratio(MEMCPY, way=OURS), optimizer_bound(found)
    return None if reached is None or bound is None else reached / bound


def targets(found: Found) -> list[Target]:
    """All targets, in the order of the issue that set them."""
    trained = [("MLP 784-1024-1024-10", found.ratio(PLAIN_HOROVOD, what=of.TRAINING, way=of.ASYNC))]
    idle = [
        (f"{one.config['way']}, {one.config['where']}, {_servers(one.config['servers'])}", one.value)
        for one in found.where(what=of.IDLE)
    ]
    plain, sgd = "Push and pull on one node, no optimizer", "Push and pull on one node, SGD with momentum"
    memcpy, both = _on_one_node(found, of.TRANSFER, MEMCPY), _on_one_node(found, of.TRANSFER, SEND_RECV)
    shares = _on_one_node(found, of.OPTIMIZER, optimizer_share)
    wanted = f"≥ {TRAINING_RATIO:g} x the examples/s of a plain Horovod loop on two ranks"
    return [
        at_least(plain, f"≥ {MEMCPY_RATIO:g} x memcpy of the same bytes", memcpy, MEMCPY_RATIO),
        at_least(sgd, f"≥ {OPTIMIZER_SHARE:g} of 2 / (2 + apply / memcpy)", shares, OPTIMIZER_SHARE),
        at_least(plain, f"≥ {SEND_RECV_RATIO:g} x Send/Recv of the same bytes", both, SEND_RECV_RATIO),
        at_least("Training, one server and two workers", wanted, trained, TRAINING_RATIO, ".3f"),
        Target(
            "A server that waits",
            f"< {IDLE_SHARE:.0%} of a core",
            [(name, f"{share:.2%}", share < IDLE_SHARE) for name, share in idle],
        ),
    ]


def _on_one_node(
    found: Found, what: str, ratio: str | Callable[[Found], float | None]
) -> Iterator[tuple[str, float | None]]:
    own = found.where(what=what, where=ONE_NODE)
    for size, servers in own.each("size", "servers"):
        group = own.where(size=size, servers=servers)
        number = group.ratio(ratio, way=OURS) if isinstance(ratio, str) else ratio(group)
        yield f"{size}, {_servers(servers)}", number


def _servers(count: int) -> str:
    return "1 server" if count == 1 else f"{count} servers"


def make_page(found: Found, settings: Settings) -> Report:
    """The whole report."""
    how, of_ways = settings.training, {"Way": "way", "Ranks": "ranks"}
    transfers, trained, slow = (found.where(what=what) for what in (of.TRANSFER, of.TRAINING, of.SLOW_WORKER))
    tcp = Found(one for one in transfers if "TCP" in one.config["where"])
    node = Found(one for one in transfers if one not in tcp)
    shares = [Bar(name, n, OPTIMIZER_SHARE) for name, n in _on_one_node(found, of.OPTIMIZER, optimizer_share)]
    ratios = [
        Bar(one.config["way"], one.ratio, TRAINING_RATIO if one.config["way"] == of.ASYNC else None)
        for one in trained
        if one.baseline == PLAIN_HOROVOD
    ]
    kept = [Bar(one.baseline, one.ratio) for one in slow if one.baseline]
    training_text = TRAINING_TEXT.format(examples=how.examples, secs=how.warm_up_secs)
    optimizer, losses, idle = (found.where(what=what) for what in (of.OPTIMIZER, of.TO_LOSS, of.IDLE))
    parts = (
        ("Push and pull on one node", TRANSFER_TEXT, node, NAMES, list(_charts(node, MEMCPY))),
        ("Push and pull with SGD and momentum", OPTIMIZER_TEXT, optimizer, NAMES, [Bars("Share of the bound", shares)]),
        ("Push and pull over TCP", TCP_TEXT, tcp, NAMES, list(_charts(tcp, SEND_RECV))),
        ("Training", training_text, trained, of_ways, [Bars("Examples a second; plain Horovod is 1", ratios)]),
        ("One slow worker", SLOW_TEXT, slow, of_ways, [Bars(f"Examples a second kept with {of.SLOW}", kept)]),
        ("Time to a given loss", LOSS_TEXT.format(loss=how.loss), losses, of_ways, []),
        ("A server that waits", IDLE_TEXT, idle, NAMES, []),
    )
    sections = [
        Section(title, [text], charts, [numbers(own, names)]) for title, text, own, names, charts in parts if own
    ]
    rows = [_staleness_row(one) for one in found.cases() if "staleness" in one.config]
    header = ("Way", "gradients", "mean staleness", "highest", "by staleness")
    sections += [Section("Staleness", [STALENESS_TEXT], tables=[Table(header, rows)])] if rows else []
    return Report("Parameter servers: against memcpy, Send/Recv and Horovod", SUMMARY, targets(found), sections)


def _charts(found: Found, unit: str) -> Iterator[Bars]:
    """A chart for each place and number of servers, in which the way `unit` is 1."""
    for where, servers in found.each("where", "servers"):
        bars = []
        for size in found.each("size"):
            group = found.where(where=where, servers=servers, size=size)
            one, own, other = (group.one(way=way) for way in (unit, OURS, SEND_RECV))
            if one and own:
                target = MEMCPY_RATIO if (unit, where) == (MEMCPY, ONE_NODE) else None
                bars.append(Bar(f"{size}, {OURS}", group.ratio(unit, way=OURS), target))
            if one and other and unit != SEND_RECV:
                bars.append(Bar(f"{size}, {SEND_RECV}", other.value / one.value, ours=False))
        yield Bars(f"{where}, {_servers(servers)}; {unit} is 1", bars)


def _staleness_row(record: Record) -> tuple[str, ...]:
    counted = {int(staleness): count for staleness, count in record.config["staleness"].items()}
    total = sum(counted.values())
    mean = sum(staleness * count for staleness, count in counted.items()) / total
    shares = ", ".join(f"{staleness}: {counted[staleness] / total:.0%}" for staleness in sorted(counted)[:8])
    return record.config["way"], f"{total:,}", f"{mean:.2f}", f"{max(counted)}", shares
