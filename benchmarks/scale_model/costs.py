"""What an exchange of gradients takes: latency and bandwidth of the links, by algorithm. Pure.

A message of m bytes takes alpha + m * beta (Hockney, "The communication challenge for MPP: Intel Paragon and Meiko
CS-2", Parallel Computing 20, 1994). What an allreduce is made of: Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", IJHPCA 19, 2005; Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", JPDC 69, 2009. Adding the numbers up is part of beta, which is measured on
collectives that add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

Algorithm = Literal["ring", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclass(frozen=True)
class Link:
    """One way between two ranks.

    Attributes:
        latency_secs: alpha. secs_per_byte: beta. error: Median relative error of the fit that they come from.
        agreement_secs: What it takes until all know that all are ready, for each doubling of the ranks. Horovod's
            ranks agree by an allreduce of a few bits in each cycle (horovod/common/response_cache.cc); the tensors'
            way through TensorFlow is part of it.

    Raises:
        ValueError: A number is negative or not finite.
    """

    latency_secs: float
    secs_per_byte: float
    error: float = 0.0
    agreement_secs: float = 0.0

    def __post_init__(self) -> None:
        for name in ("latency_secs", "secs_per_byte", "error", "agreement_secs"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"Link.{name} is {value}: give a number from 0 on")

    @property
    def gb_per_sec(self) -> float:
        """Bandwidth; infinite where a byte takes no time."""
        return 1e-9 / self.secs_per_byte if self.secs_per_byte else math.inf


@dataclass(frozen=True)
class Network:
    """The links of a cluster.

    Attributes:
        inside: Between ranks of a node. between: Between nodes; the ranks of a node share it.
        ranks_per_node: So many ranks share a node.

    Raises:
        ValueError: A node holds no rank.
    """

    inside: Link
    between: Link
    ranks_per_node: int = 1

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1:
            raise ValueError(f"Network.ranks_per_node is {self.ranks_per_node}: give a number from 1 on")

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


def allreduce_secs(algorithm: Algorithm, network: Network, ranks: int, nbytes: float) -> float:
    """Seconds until all ranks have the sum of `nbytes` bytes of each, agreement included; 0 with one rank.

    Raises:
        ValueError: There is no such algorithm.
    """
    if ranks <= 1:
        return 0.0
    agreement = network.agreement_secs(ranks)
    if algorithm == "ring":
        return agreement + ring_secs(network.slowest(ranks), ranks, nbytes)
    if algorithm == "hierarchical":
        return agreement + hierarchical_secs(network, ranks, nbytes)
    raise ValueError(f"{algorithm!r} is no algorithm of allreduce; there are: {', '.join(ALGORITHMS)}")


def ring_secs(link: Link, ranks: int, nbytes: float) -> float:
    """2 (n - 1) rounds of nbytes / n each: reduce-scatter, then allgather (Patarasuk and Yuan 2009)."""
    if ranks <= 1:
        return 0.0
    return 2 * (ranks - 1) * (link.latency_secs + nbytes / ranks * link.secs_per_byte)


def hierarchical_secs(network: Network, ranks: int, nbytes: float) -> float:
    """Reduce-scatter inside each node, rings between the nodes, allgather inside.

    As Goyal et al., "Accurate, large minibatch SGD", arXiv:1706.02677, section 4, and NCCL's way in Horovod
    (HOROVOD_HIERARCHICAL_ALLREDUCE). Each rank of a node has a ring of its own with its share of the bytes; they run
    at the same time and share the node's link, so nbytes go through it. Node by node it is a ring.
    """
    if ranks <= 1:
        return 0.0
    nodes, local = network.nodes(ranks), min(ranks, network.ranks_per_node)
    return ring_secs(network.inside, local, nbytes) + ring_secs(network.between, nodes, nbytes)


@dataclass(frozen=True)
class Exchange:
    """A worker's push and pull, with k servers that hold equal parts.

    Attributes:
        wire_secs: What the worker's own link takes. service_secs: For so long it keeps each of the servers busy.
    """

    wire_secs: float
    service_secs: float

    @property
    def alone_secs(self) -> float:
        """Of one worker alone: the servers work at the same time, while the worker's link goes on."""
        return max(self.wire_secs, self.service_secs)


def parameter_server_exchange(
    network: Network, ranks: int, servers: int, nbytes: float, apply_secs_per_byte: float = 0.0
) -> Exchange:
    """Push and pull of `nbytes` each way, of one of the `ranks` - `servers` workers (Li et al., OSDI 2014).

    A worker sends a message to each server and gets one from each; a server moves its part, nbytes / k, both ways and
    applies it. Where the job takes more than one node, they go over the link between nodes, which servers of one node,
    the first ranks, share.

    Raises:
        ValueError: There is no server, or no worker.
    """
    if not 1 <= servers < ranks:
        raise ValueError(f"{servers} servers of {ranks} ranks: there must be a server and a worker at least")
    link = network.slowest(ranks)
    beside = min(servers, network.ranks_per_node) if network.nodes(ranks) > 1 else 1
    wire = 2 * servers * link.latency_secs + 2 * nbytes * link.secs_per_byte
    moved = 2 * link.latency_secs + 2 * nbytes / servers * link.secs_per_byte
    return Exchange(wire, beside * moved + nbytes / servers * apply_secs_per_byte)
