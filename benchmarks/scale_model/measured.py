"""The network as a run of collectives.py measured it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scale_model.costs import Link, Network
from scale_model.fit import fit_link, fit_ring

BENCHMARK, OPERATION = "collectives", "allreduce"
RAW = "MPI_Allreduce"
HOROVOD = ("Horovod, group", "Horovod, one tensor")
"""Ways of an allreduce that gradients may take; the first that was measured counts."""
ONE_NODE, ACROSS_NODES, OVER_TCP = "one node", "one rank a node", "one host, TCP"
LATENCY_BYTES = 1024
"""Up to here, a message is as good as empty."""


class Measured(Protocol):
    """What is needed of a record, see support/records.py."""

    @property
    def benchmark(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def config(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class FittedNetwork:
    """Links, and where they come from.

    Attributes:
        inside, between: Where each was measured, a place of collectives.py; `between` is that of `inside` where
            nothing went between nodes, and "one host, TCP" where it stands for them.
        points: How many times each of the two comes from.
    """

    network: Network
    inside: str
    between: str
    points: tuple[int, int]

    @property
    def between_words(self) -> str:
        """What stands for the link between nodes, in a few words."""
        if self.between == self.inside:
            return "taken as inside one, for want of a measurement"
        return f"{self.between}, which stands for it" if self.between == OVER_TCP else self.between

    @property
    def words(self) -> str:
        """The links in a sentence or two."""
        told = [_words("Inside a node", self.network.inside, self.inside)]
        if self.between == self.inside:
            return f"{told[0]} Nothing was measured between nodes: the same is taken for it."
        return " ".join([*told, _words("Between nodes", self.network.between, self.between_words)])


def _words(where: str, link: Link, place: str) -> str:
    bandwidth = f"{link.gb_per_sec:.3g} GB/s" if math.isfinite(link.gb_per_sec) else "a bandwidth too high to be seen"
    return (
        f"{where} (measured: {place}) {_micro(link.latency_secs)} µs a message, {bandwidth}, and "
        f"{_micro(link.agreement_secs)} µs to agree for each doubling of the ranks; median error of the fit "
        f"{link.error:.0%}."
    )


def _micro(secs: float) -> str:
    micro = 1e6 * secs
    return f"{micro:,.0f}" if micro >= 100 else f"{micro:.3g}"


def network_of(
    records: Iterable[Measured], ranks_per_node: int, sizes: tuple[float, float] = (0.0, math.inf)
) -> FittedNetwork:
    """The network that the allreduces of `records` went over.

    Latency is raw MPI's with small messages; bandwidth, and what it takes to agree, are Horovod's. Memory that fits a
    cache is faster than memory that does not: `sizes`, from and to in bytes, keeps to allreduces as large as those
    that are to be predicted.

    Raises:
        ValueError: There are no allreduces among the records, or too few of those sizes.
    """
    allreduces = [
        record for record in records if record.benchmark == BENCHMARK and record.config.get("operation") == OPERATION
    ]
    places = {record.config["place"] for record in allreduces}
    between = next((place for place in (ACROSS_NODES, OVER_TCP) if place in places), None)
    inside = ONE_NODE if ONE_NODE in places else between
    if inside is None:
        raise ValueError("the records hold no allreduce on one node, or of one rank a node: run collectives.py first")
    first, first_points = _link(allreduces, inside, sizes)
    other, other_points = _link(allreduces, between, sizes) if between else (first, 0)
    network = Network(first, other, ranks_per_node)
    return FittedNetwork(network, inside, between or inside, (first_points, other_points))


def _link(records: Sequence[Measured], place: str, sizes: tuple[float, float]) -> tuple[Link, int]:
    here = [record for record in records if record.config["place"] == place]
    ways = {record.config["way"] for record in here}
    way = next((way for way in HOROVOD if way in ways), None)
    if way is None or RAW not in ways:
        raise ValueError(f"{place}: allreduces of Horovod and of MPI must be there, but there are: {sorted(ways)}")
    latency = _latency(_points(here, RAW, (0.0, LATENCY_BYTES)))
    low, high = sizes
    points = _points(here, way, sizes)
    if len(points) < 2:
        raise ValueError(f"{place}, {way}: {len(points)} sizes between {low:g} and {high:g} bytes, two are needed")
    ranks, nbytes, secs = zip(*points, strict=True)
    return fit_ring(ranks, nbytes, secs, latency), len(points)


def _latency(points: Sequence[tuple[int, float, float]]) -> float | None:
    """Of a message, from small allreduces of raw MPI, which doubles its partners: log2(n) rounds (Thakur 2005)."""
    if len(points) < 2:
        return None
    rounds = [math.ceil(math.log2(n)) for n, _, _ in points]
    each = [secs / r for (_, _, secs), r in zip(points, rounds, strict=True)]
    return fit_link([nbytes for _, nbytes, _ in points], each).latency_secs


def _points(records: Sequence[Measured], way: str, sizes: tuple[float, float]) -> list[tuple[int, float, float]]:
    """Ranks, bytes and seconds, each once."""
    found = {
        (record.ranks, float(record.config["bytes"])): float(record.config["secs"])
        for record in records
        if record.config["way"] == way and sizes[0] <= record.config["bytes"] <= sizes[1]
    }
    return [(ranks, nbytes, secs) for (ranks, nbytes), secs in sorted(found.items())]
