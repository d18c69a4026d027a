"""The numbers to reach, and what was measured beside them. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from support.report import Target

from parameter_servers.results import Group, Results
from parameter_servers.training import TRAINING
from parameter_servers.ways import APPLIED, ASYNC, MEMCPY, ONE_NODE, OURS, PLAIN_HOROVOD, SEND_RECV

MEMCPY_RATIO = 0.4
SEND_RECV_RATIO = 2.0
OPTIMIZER_SHARE = 0.8
TRAINING_RATIO = 1.12
IDLE_SHARE = 0.05


def optimizer_bound(results: Results, group: Group) -> float | None:
    """What push and pull with an optimizer can reach at most, as a share of memcpy: 2 / (2 + apply / memcpy)."""
    apply_over_memcpy = results.ratio(group, MEMCPY, APPLIED)  # of rates: the other way round than of times
    return None if apply_over_memcpy is None else 2 / (2 + apply_over_memcpy)


def optimizer_share(results: Results, group: Group) -> float | None:
    """Which part of that was reached."""
    reached, bound = results.ratio(group, OURS, MEMCPY), optimizer_bound(results, group)
    return None if reached is None or bound is None else reached / bound


def targets(results: Results) -> list[Target]:
    """All targets, in the order of the issue that set them."""
    trained = results.ratio(TRAINING, ASYNC, PLAIN_HOROVOD)
    idle = [(found, group) for group in results.groups("idle server") for found in results.of(group)]
    return [
        Target(
            "Push and pull on one node, no optimizer",
            f"≥ {MEMCPY_RATIO:g} x memcpy of the same bytes",
            list(_at_least(results, "transfer", lambda group: results.ratio(group, OURS, MEMCPY), MEMCPY_RATIO)),
        ),
        Target(
            "Push and pull on one node, SGD with momentum",
            f"≥ {OPTIMIZER_SHARE:g} of 2 / (2 + apply / memcpy)",
            list(_at_least(results, "transfer, SGD", lambda group: optimizer_share(results, group), OPTIMIZER_SHARE)),
        ),
        Target(
            "Push and pull on one node, no optimizer",
            f"≥ {SEND_RECV_RATIO:g} x Send/Recv of the same bytes",
            list(_at_least(results, "transfer", lambda group: results.ratio(group, OURS, SEND_RECV), SEND_RECV_RATIO)),
        ),
        Target(
            "Training, one server and two workers",
            f"≥ {TRAINING_RATIO:g} x the examples/s of a plain Horovod loop on two ranks",
            [] if trained is None else [("MLP 784-1024-1024-10", f"{trained:.3f}", trained >= TRAINING_RATIO)],
        ),
        Target(
            "A server that waits",
            f"< {IDLE_SHARE:.0%} of a core",
            [
                (f"{found.way}, {group.where}, {_servers(group)}", f"{found.median:.2%}", found.median < IDLE_SHARE)
                for found, group in idle
            ],
        ),
    ]


def _at_least(
    results: Results, what: str, ratio: Callable[[Group], float | None], least: float
) -> Iterator[tuple[str, str, bool]]:
    for group in results.groups(what):  # type: ignore[arg-type]
        value = ratio(group)
        if group.where == ONE_NODE and value is not None:
            yield f"{group.size}, {_servers(group)}", f"{value:.3g}", value >= least


def _servers(group: Group) -> str:
    return "1 server" if group.servers == 1 else f"{group.servers} servers"
