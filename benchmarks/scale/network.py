"""The links of a cluster, as a run of collectives.py measured them, and what an exchange over them takes. Pure.

A message of m bytes takes alpha + m * beta (Hockney, "The communication challenge for MPP: Intel Paragon and Meiko
CS-2", Parallel Computing 20, 1994). What an allreduce is made of: Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", IJHPCA 19, 2005; Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", JPDC 69, 2009. Adding the numbers up is part of beta, which is measured on
collectives that add.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from support.records import Record

BENCHMARK, OPERATION = "collectives", "allreduce"
RAW, MEMCPY = "MPI_Allreduce", "memcpy"
HOROVOD = ("Horovod, group", "Horovod, one tensor")
"""Ways of an allreduce that gradients may take; the first that was measured counts."""
ONE_NODE, ACROSS_NODES, OVER_TCP = "one node", "one rank a node", "one host, TCP"
LATENCY_BYTES = 1024
"""Up to here, a message is as good as empty."""
FUSION_PASSES = 2.0
"""Into Horovod's fusion buffer, and out of it."""
MEAN_PASSES = 1.0
"""Sums are divided by the number of ranks."""
UPDATE_PASSES = 2.0
"""The check that all numbers are finite, and the update of the variables."""


@dataclass(frozen=True)
class Link:
    """One way between two ranks.

    Attributes:
        latency_secs: alpha. secs_per_byte: beta. error: Median relative error of the fit that they come from.
        agreement_secs: What it takes until all know that all are ready, for each doubling of the ranks. Horovod's
            ranks agree by an allreduce of a few bits in each cycle (horovod/common/response_cache.cc); the tensors'
            way through TensorFlow is part of it.
    """

    latency_secs: float
    secs_per_byte: float
    error: float = 0.0
    agreement_secs: float = 0.0

    @property
    def words(self) -> str:
        """All of it."""
        bandwidth = f"{1e-9 / self.secs_per_byte:.3g} GB/s" if self.secs_per_byte else "a bandwidth too high to be seen"
        return (
            f"{_micro(self.latency_secs)} µs a message, {bandwidth}, and {_micro(self.agreement_secs)} µs to agree for "
            f"each doubling of the ranks; median error of the fit {self.error:.0%}."
        )


def _micro(secs: float) -> str:
    micro = 1e6 * secs
    return f"{micro:,.0f}" if micro >= 100 else f"{micro:.3g}"


@dataclass(frozen=True)
class Network:
    """The links of a cluster.

    Attributes:
        inside: Between ranks of a node. between: Between nodes; the ranks of a node share it.
        ranks_per_node: So many ranks share a node.
        inside_place, between_place: Where each was measured, a place of collectives.py; the second is the first where
            nothing went between nodes, and OVER_TCP where that stands for them.
    """

    inside: Link
    between: Link
    ranks_per_node: int = 1
    inside_place: str = ONE_NODE
    between_place: str = ACROSS_NODES

    def with_ranks_per_node(self, ranks_per_node: int) -> Network:
        """The same links with other nodes."""
        return replace(self, ranks_per_node=ranks_per_node)

    def nodes(self, ranks: int) -> int:
        """So many nodes hold `ranks` ranks."""
        return -(-ranks // self.ranks_per_node)

    def agreement_secs(self, ranks: int) -> float:
        """What `ranks` ranks take to agree, first inside nodes, then between them."""
        inside = self.inside.agreement_secs * math.log2(min(ranks, self.ranks_per_node))
        return inside + self.between.agreement_secs * math.log2(self.nodes(ranks))

    def slowest(self, ranks: int) -> Link:
        """What each round of a ring through `ranks` ranks waits for, nodes one after the other in it."""
        if ranks <= self.ranks_per_node:
            return self.inside
        if self.ranks_per_node == 1:
            return self.between
        return Link(
            max(self.inside.latency_secs, self.between.latency_secs),
            max(self.inside.secs_per_byte, self.between.secs_per_byte),
        )

    @property
    def between_words(self) -> str:
        """What stands for the link between nodes, in a few words."""
        if self.between_place == self.inside_place:
            return "taken as inside one, for want of a measurement"
        return f"{self.between_place}, which stands for it" if self.between_place == OVER_TCP else self.between_place

    @property
    def words(self) -> str:
        """The links in a sentence or two."""
        inside = f"Inside a node (measured: {self.inside_place}) {self.inside.words}"
        if self.between_place == self.inside_place:
            return f"{inside} Nothing was measured between nodes: the same is taken for it."
        return f"{inside} Between nodes (measured: {self.between_words}) {self.between.words}"


def allreduce_secs(way: str, network: Network, ranks: int, nbytes: float) -> float:
    """Seconds until all ranks have the sum of `nbytes` bytes of each, agreement included; 0 with one rank.

    Args:
        way: "ring", or "hierarchical": reduce-scatter inside each node, rings between the nodes, allgather inside. As
            Goyal et al., "Accurate, large minibatch SGD", arXiv:1706.02677, section 4, and NCCL's way in Horovod
            (HOROVOD_HIERARCHICAL_ALLREDUCE). Each rank of a node has a ring of its own with its share of the bytes;
            they run at the same time and share the node's link, so nbytes go through it. Node by node it is a ring.
    """
    if ranks <= 1:
        return 0.0
    agreement = network.agreement_secs(ranks)
    if way == "ring":
        return agreement + ring_secs(network.slowest(ranks), ranks, nbytes)
    local = min(ranks, network.ranks_per_node)
    inside, between = ring_secs(network.inside, local, nbytes), ring_secs(network.between, network.nodes(ranks), nbytes)
    return agreement + inside + between


def ring_secs(link: Link, ranks: int, nbytes: float) -> float:
    """2 (n - 1) rounds of nbytes / n each: reduce-scatter, then allgather (Patarasuk and Yuan 2009)."""
    return 2 * (ranks - 1) * (link.latency_secs + nbytes / ranks * link.secs_per_byte)


def server_secs(
    network: Network, ranks: int, servers: int, nbytes: float, apply_secs_per_byte: float = 0.0
) -> tuple[float, float]:
    """Push and pull of `nbytes` each way, of one of the `ranks` - `servers` workers (Li et al., OSDI 2014).

    A worker sends a message to each server and gets one from each; a server moves its part, nbytes / k, both ways and
    applies it. Where the job takes more than one node, they go over the link between nodes, which servers of one node,
    the first ranks, share.

    Returns:
        What the worker's own link takes, and for how long it keeps each of the servers busy.
    """
    link = network.slowest(ranks)
    beside = min(servers, network.ranks_per_node) if network.nodes(ranks) > 1 else 1
    wire = 2 * servers * link.latency_secs + 2 * nbytes * link.secs_per_byte
    moved = 2 * link.latency_secs + 2 * nbytes / servers * link.secs_per_byte
    return wire, beside * moved + nbytes / servers * apply_secs_per_byte


def fit(terms: np.ndarray, secs: np.ndarray, known: np.ndarray | float = 0.0) -> tuple[list[float], float]:
    """The non-negative coefficients that make `terms` [points, k] times them and `known` come closest to `secs`.

    Least squares of the relative error, so that 4 bytes count as much as 256 MB; all sets of columns are tried, as
    there are so few (Lawson and Hanson, "Solving least squares problems", 1974, chapter 23).

    Returns:
        The coefficients, and the median relative error.
    """
    matrix, wanted = terms / secs[:, None], 1 - known / secs
    scale = np.maximum(np.abs(matrix).max(axis=0), np.finfo(np.float64).tiny)
    best, values = float(wanted @ wanted), np.zeros(matrix.shape[1])
    for chosen in range(1, 1 << len(values)):
        columns = [column for column in range(len(values)) if chosen >> column & 1]
        part = matrix[:, columns] / scale[columns]
        found = np.linalg.lstsq(part, wanted, rcond=None)[0]
        left = part @ found - wanted
        if (found >= 0).all() and float(left @ left) < best:
            best, values = float(left @ left), np.zeros(len(values))
            values[columns] = found / scale[columns]
    return values.tolist(), float(np.median(np.abs(matrix @ values - wanted)))


def fit_link(nbytes: Sequence[float], secs: Sequence[float]) -> Link:
    """Latency and bandwidth of messages of `nbytes` that took `secs`: alpha + nbytes * beta (Hockney 1994)."""
    (latency, per_byte), error = fit(np.stack([np.ones(len(nbytes)), np.array(nbytes)], axis=1), np.array(secs))
    return Link(latency, per_byte, error)


def fit_ring(
    ranks: Sequence[int], nbytes: Sequence[float], secs: Sequence[float], latency_secs: float | None = None
) -> Link:
    """The link that ring-allreduces went over: 2 (n - 1) (alpha + nbytes / n beta) + agreement log2(n).

    Args:
        latency_secs: alpha, where it is known from elsewhere, such as raw MPI's; None: fitted, and without agreement
            where all have the same number of ranks, in which the two cannot be told apart.
    """
    n, size, times = (np.array(numbers, np.float64) for numbers in (ranks, nbytes, secs))
    hops, moved, doublings = 2 * (n - 1), 2 * (n - 1) / n * size, np.log2(n)
    if latency_secs is not None:
        (per_byte, agreement), error = fit(np.stack([moved, doublings], axis=1), times, hops * latency_secs)
        return Link(latency_secs, per_byte, error, agreement)
    terms = [hops, moved, *([doublings] if len(set(ranks)) > 1 else [])]
    (latency, per_byte, *more), error = fit(np.stack(terms, axis=1), times)
    return Link(latency, per_byte, error, *more)


def network_of(records: Iterable[Record], ranks_per_node: int, sizes: tuple[float, float] = (0.0, math.inf)) -> Network:
    """The network that the allreduces of `records` went over.

    Latency is raw MPI's with small messages; bandwidth, and what it takes to agree, are Horovod's. Memory that fits a
    cache is faster than memory that does not: `sizes`, from and to in bytes, keeps to allreduces as large as those
    that are to be predicted.

    Raises:
        ValueError: There are no allreduces among the records, or too few of those sizes.
    """
    allreduces = [one for one in records if one.benchmark == BENCHMARK and one.config.get("operation") == OPERATION]
    places = {record.config["place"] for record in allreduces}
    between = next((place for place in (ACROSS_NODES, OVER_TCP) if place in places), None)
    inside = ONE_NODE if ONE_NODE in places else between
    if inside is None:
        raise ValueError("the records hold no allreduce on one node, or of one rank a node: run collectives.py first")
    first = _link(allreduces, inside, sizes)
    other = _link(allreduces, between, sizes) if between else first
    return Network(first, other, ranks_per_node, inside, between or inside)


def _link(records: Sequence[Record], place: str, sizes: tuple[float, float]) -> Link:
    here = [record for record in records if record.config["place"] == place]
    ways = {record.config["way"] for record in here}
    way = next((way for way in HOROVOD if way in ways), None)
    if way is None or RAW not in ways:
        raise ValueError(f"{place}: allreduces of Horovod and of MPI must be there, but there are: {sorted(ways)}")
    small, points = _points(here, RAW, (0.0, LATENCY_BYTES)), _points(here, way, sizes)
    if len(points) < 2:
        low, high = sizes
        raise ValueError(f"{place}, {way}: {len(points)} sizes between {low:g} and {high:g} bytes, two are needed")
    latency = None
    if len(small) > 1:  # raw MPI doubles its partners: log2(n) rounds (Thakur 2005)
        each = [secs / math.ceil(math.log2(n)) for n, _, secs in small]
        latency = fit_link([nbytes for _, nbytes, _ in small], each).latency_secs
    ranks, nbytes, secs = zip(*points, strict=True)
    return fit_ring(ranks, nbytes, secs, latency)


def _points(records: Sequence[Record], way: str, sizes: tuple[float, float]) -> list[tuple[int, float, float]]:
    """Ranks, bytes and seconds, each once."""
    found = {
        (record.ranks, float(record.config["bytes"])): float(record.config["secs"])
        for record in records
        if record.config["way"] == way and sizes[0] <= record.config["bytes"] <= sizes[1]
    }
    return [(ranks, nbytes, secs) for (ranks, nbytes), secs in sorted(found.items())]


def passes(ranks: int) -> float:
    """Over the gradients, by each rank and step, of which each costs what memcpy of as many bytes does.

    A ring-allreduce sends 2(n-1)/n of them, each a copy, and adds up (n-1)/n (Patarasuk and Yuan 2009).
    """
    if ranks == 1:
        return UPDATE_PASSES
    return FUSION_PASSES + 3 * (ranks - 1) / ranks + MEAN_PASSES + UPDATE_PASSES


def memory_rate(records: Iterable[Record]) -> float | None:
    """Bytes a second that all ranks of a run of collectives.py copied together, in blocks too large for caches."""
    found = [
        (record.config["bytes"], record.ranks * record.config["bytes"] / record.config["secs"])
        for record in records
        if record.benchmark == BENCHMARK
        and (record.config["operation"], record.config["place"], record.config["way"]) == (OPERATION, ONE_NODE, MEMCPY)
    ]
    return max(found)[1] if found else None


def most_efficiency(ranks: int, step_secs: float, gradient_bytes: float, bytes_per_sec: float) -> float:
    """Of as many times one rank, where `ranks` wait for `step_secs` at once but take turns at the memory.

    It is what the memory of one machine lets many emulated ranks reach at most: accelerators' nodes would not share it.
    """

    def step(n: int) -> float:
        return step_secs + n * passes(n) * gradient_bytes / bytes_per_sec

    return step(1) / step(ranks)
