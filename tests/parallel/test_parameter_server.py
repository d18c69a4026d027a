from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpc_train.distributed.parameter_server.window import SHARED_VARIABLE
from tests.support import largest_staleness, run_ranks

PROGRAM = Path(__file__).parent / "programs" / "parameter_server.py"

ROUTES: dict[str, dict[str, str]] = {
    "shared": {},
    "window": {SHARED_VARIABLE: "0"},
    "tcp": {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_osc": "pt2pt"},
}
"""Memory that the ranks of a node share; MPI's own windows on one node; TCP alone, as between nodes."""


@dataclass(frozen=True)
class Case:
    """A run of the program; `bound` -1: none."""

    route: str
    ranks: int
    servers: int
    bound: int
    options: tuple[str, ...] = ()
    steps: int = 200

    def __str__(self) -> str:
        bound = "unbound" if self.bound < 0 else f"bound{self.bound}"
        return "-".join((self.route, f"{self.ranks}ranks", f"{self.servers}servers", bound, *self.options))

    @property
    def workers(self) -> int:
        return self.ranks - self.servers

    @property
    def tickets(self) -> int:
        return self.steps * self.workers if self.bound == 0 else self.steps

    @property
    def largest_staleness(self) -> int:
        return largest_staleness(self.workers, self.bound, "prefetch" in self.options)


CASES = [
    Case("shared", 2, 1, -1, ("prefetch", "slow")),
    Case("shared", 3, 1, 2, ("prefetch", "slow")),
    Case("shared", 4, 2, 1, ("slow",)),
    Case("shared", 5, 2, -1, ("dawdle", "idle")),
    Case("shared", 5, 2, 0, steps=50),
    Case("window", 3, 1, 0, steps=50),
    Case("window", 5, 2, 3, ("prefetch", "dawdle")),
    Case("tcp", 2, 1, -1),
    Case("tcp", 4, 2, 0, steps=50),
    Case("tcp", 5, 1, 2, ("dawdle", "idle")),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_servers_and_workers(case: Case, tmp_path: Path) -> None:
    # The program asserts that neither parameters nor gradients are torn.
    arguments = [PROGRAM, case.servers, case.bound, case.steps, *case.options]
    done = run_ranks(case.ranks, arguments, tmp_path, **ROUTES[case.route])
    assert done.returncode == 0, done.stdout + done.stderr
    told = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda rank: rank["rank"])
    assert [rank["rank"] for rank in told] == list(range(case.ranks)), "every rank leaves by itself"
    assert {rank["shared"] for rank in told} == {case.route == "shared"}
    servers, workers = told[: case.servers], told[case.servers :]
    check_counts(case, servers, workers)
    for server in servers:
        staleness = dict(server["staleness"])
        assert sum(staleness.values()) == case.tickets
        if case.bound == 0:
            assert set(staleness) == {0}
        elif case.bound > 0:
            assert max(staleness) <= case.largest_staleness
        if "idle" in case.options:
            assert server["load"] < 0.05, "of a core, with nothing to do"
    if case.bound > 0:
        assert servers[0]["spread"] <= case.bound + 1
    if "dawdle" in case.options:
        assert sum(worker["read_again"] for worker in workers) > 0, "nobody met parameters that were being overwritten"


@pytest.mark.parametrize("route", ["shared", "tcp"])
def test_a_worker_that_leaves_does_not_keep_those_who_wait_for_its_numbers(route: str, tmp_path: Path) -> None:
    done = run_ranks(4, [PROGRAM, 1, 0, 30, "early"], tmp_path, **ROUTES[route])
    assert done.returncode == 0, done.stdout + done.stderr
    server, *workers = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda rank: rank["rank"])
    assert server["version"] == 10
    assert [worker["dismissed"] for worker in workers] == [False, True, True]


def check_counts(case: Case, servers: list[dict[str, Any]], workers: list[dict[str, Any]]) -> None:
    """Each gradient was computed once and has been applied once, by each of the servers."""
    assert sorted(ticket for worker in workers for ticket in worker["tickets"]) == list(range(case.tickets))
    computed = [len(worker["tickets"]) for worker in workers]
    updates = case.steps if case.bound == 0 else case.tickets
    for server in servers:
        assert server["applied"] == computed
        assert server["version"] == updates
    if case.bound == 0:
        assert set(computed) == {case.steps}
    assert sum(server["touched"] for server in servers) == sum(worker["rows"] for worker in workers)
    assert servers[0]["peers"] == [updates] * (case.servers - 1)
    carried = [[number + 1] * 64 if count else None for number, count in enumerate(computed)]
    assert servers[0]["carried"] == carried
