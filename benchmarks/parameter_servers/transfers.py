"""The cases of bandwidth: push and pull on one node and over TCP, with and without an optimizer; servers that wait."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.launch import NO_CMA, TCP, Launch, here, make_cluster, slurm_missing, two_nodes

from parameter_servers.results import Group, Results
from parameter_servers.settings import SIZES, Settings, Transfers
from parameter_servers.ways import (
    APPLIED,
    BARE,
    MEMCPY,
    ONE_HOST_TCP,
    ONE_NODE,
    OURS,
    SEND_RECV,
    TWO_HOSTS,
    WITHOUT_CMA,
)

SERVERS = (1, 2)
LIMIT_SECS = 300.0
GIGA = 1e9


def measure_node(settings: Settings, folder: Path, results: Results) -> None:
    """On one node, with nothing but the bytes; against Send/Recv as MPI does it by itself, and without CMA."""
    for servers in SERVERS:
        _measure(here(), ONE_NODE, servers, settings.node, "none", folder, results)
    without = replace(settings.node, rests=0)
    _measure(here(NO_CMA), WITHOUT_CMA, 1, without, "none", folder, results)


def measure_optimizer(settings: Settings, folder: Path, results: Results) -> None:
    """On one node, the servers applying SGD with momentum."""
    for servers in SERVERS[-1:] if settings.quick else SERVERS:
        _measure(here(), ONE_NODE, servers, settings.optimizer, "sgd", folder, results)


def measure_tcp(settings: Settings, folder: Path, results: Results) -> None:
    """Over TCP, between two nodes of a private Slurm, and between processes of this one."""
    reason = slurm_missing()
    if reason is None:
        with make_cluster() as cluster:
            for servers in SERVERS:
                _measure(two_nodes(cluster), TWO_HOSTS, servers, settings.tcp, "none", folder, results)
    else:
        results.left_out.append(f"Between two hosts: {reason}.")
    _measure(here(TCP), ONE_HOST_TCP, 1, settings.tcp, "none", folder, results)


def _measure(
    launch: Launch, where: str, servers: int, how: Transfers, optimizer: str, folder: Path, results: Results
) -> None:
    out = folder / "transfers.json"
    numbers = {
        "servers": servers,
        "run-bytes": how.run_bytes,
        "rounds": how.rounds,
        "rest-secs": how.rest_secs,
        "rests": how.rests,
    }
    arguments: Sequence[str] = [
        *("-m", "parameter_servers.transfer_program", "--optimizer", optimizer, "--out", str(out)),
        *(word for name, number in numbers.items() for word in (f"--{name}", str(number))),
        *("--nbytes", *(str(SIZES[size]) for size in how.sizes)),
    ]
    launch(servers + 1, arguments, folder, LIMIT_SECS)
    told = json.loads(out.read_text())
    what, others = ("transfer", (MEMCPY, SEND_RECV)) if optimizer == "none" else ("transfer, SGD", (MEMCPY, APPLIED))
    for size, found in zip(how.sizes, told, strict=True):
        if found["shared"] != (where in (ONE_NODE, WITHOUT_CMA)):
            raise RuntimeError(f"{where}: the ranks {'share' if found['shared'] else 'do not share'} memory")
        group = Group(what, where, size, servers)
        config = {"bytes": SIZES[size], "servers": servers, "optimizer": optimizer}
        for way, rates in found["rates"].items():
            values = [rate / GIGA for rate in rates["per_sec"]]
            results.add(group, way, values, "GB/s", servers + 1, others if way == OURS else (), config)
    rests = [share for found in told for share in found["rests"]]
    if rests:
        results.add(Group("idle server", where, "", servers), BARE, rests, "of a core", servers + 1)
