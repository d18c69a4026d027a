"""Which CPUs each rank of a node is bound to, by the node's topology. Pure.

Memory follows by itself: the kernel puts a page next to the core that first writes to it, so a rank that is bound
before it starts MPI and TensorFlow has its memory, and Open MPI's choice of network card, on its side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hpc_train.config.resources import Bind
from hpc_train.distributed.topology import Topology, cpu_list, cpu_text

LEAST_SHARE = 0.75
"""Of a rank's equal share of the node: `auto` leaves no rank with less of its domain."""


@dataclass(frozen=True)
class RankView:
    """What one rank of a node may use: the CPUs of `mask`, and its GPU as CUDA_VISIBLE_DEVICES names it."""

    mask: frozenset[int]
    device: str | None = None


@dataclass(frozen=True)
class Binding:
    """What a rank is bound to.

    Attributes:
        by: Who has bound it: hpc_train, launcher, or nobody ("").
        cpus: As the kernel lists them; of nobody's binding none.
        numa: The NUMA domains of these, where the node has several.
        why: Why it is not bound by hpc_train.
        warns: Whether somebody has asked for what is not so.
    """

    by: str = ""
    cpus: str = ""
    numa: str = ""
    why: str = ""
    warns: bool = False

    @staticmethod
    def to(cpus: Collection[int], topology: Topology | None, by: str = "hpc_train") -> Binding:
        """Of `cpus`."""
        several = topology is not None and len(topology.domains) > 1
        own = (
            [n for n, domain in topology.domains.items() if not domain.isdisjoint(cpus)] if several and topology else []
        )
        return Binding(by, cpu_text(cpus), cpu_text(own))

    def usable(self, mask: frozenset[int]) -> frozenset[int]:
        """The CPUs of a rank that has been given those of `mask`."""
        return cpu_list(self.cpus) if self.by == "hpc_train" else mask

    def described(self) -> dict[str, str]:
        """For environment.json."""
        said = {"by": self.by, "cpus": self.cpus, "numa": self.numa, "why": self.why}
        return {name: text for name, text in said.items() if text}


def unbound(ranks: int, why: str, warns: bool = False) -> list[Binding]:
    """Nobody is bound, for one reason."""
    return [Binding(why=why, warns=warns)] * ranks


def bindings(bind: Bind, views: Sequence[RankView], topology: Topology, threads: int | None) -> list[Binding]:
    """What each of a node's ranks is bound to.

    With `core`, each has cores of its own: as many as its `threads`, or an equal share; SMT siblings stay together.
    With `numa` it shares the domains next to its GPU, or without one its part of all domains. `auto` is `numa`, where
    no rank has fewer CPUs so than it needs.

    Args:
        views: By local rank; all have one mask.
        threads: OMP_NUM_THREADS, where it was given.
    """
    count, asked = len(views), bind != "auto"
    if bind == "none":
        return unbound(count, "bind is none")
    mask = views[0].mask
    if bind == "core":
        return _cores(views, mask, topology, threads)
    inside = {number: cpus & mask for number, cpus in topology.domains.items() if cpus & mask}
    if not asked and len(inside) < 2:
        return unbound(count, "all CPUs are in one NUMA domain")
    chosen = _whole_domains(views, sorted(inside), topology)
    given = [frozenset().union(*(inside[number] for number in own)) for own in chosen]
    if not asked:
        needed = threads if threads is not None else LEAST_SHARE * len(mask) / count
        users = Counter(cpu for cpus in given for cpu in cpus)
        if any(sum(1 / users[cpu] for cpu in cpus) < needed for cpus in given):
            return unbound(count, "a NUMA domain has too few CPUs for its ranks")
    if all(cpus == mask for cpus in given):
        return unbound(
            count, "each rank has all NUMA domains" if len(inside) > 1 else "all CPUs are in one NUMA domain"
        )
    return [Binding.to(cpus, topology) for cpus in given]


def by_launcher(views: Sequence[RankView], topology: Topology | None, asked: bool) -> list[Binding]:
    """Each rank keeps what its launcher has bound it to, also where something else is `asked` for."""
    why = "the launcher has bound the ranks already; start them without (mpirun --bind-to none)" if asked else ""
    return [replace(Binding.to(view.mask, topology, "launcher"), why=why, warns=asked) for view in views]


def _whole_domains(views: Sequence[RankView], numbers: Sequence[int], topology: Topology) -> list[tuple[int, ...]]:
    """By rank the domain next to its GPU, else its part of all, in order."""
    count = len(views)
    found: list[tuple[int, ...]] = []
    for rank, view in enumerate(views):
        near = topology.gpu_domain(view.device)
        first = rank * len(numbers) // count
        last = max(first + 1, (rank + 1) * len(numbers) // count)
        found.append((near,) if near is not None and near in numbers else tuple(numbers[first:last]))
    return found


def _cores(views: Sequence[RankView], mask: frozenset[int], topology: Topology, threads: int | None) -> list[Binding]:
    count = len(views)
    free: dict[int, list[frozenset[int]]] = {}
    for core in topology.cores:
        if own := core & mask:
            number = next(number for number, cpus in topology.domains.items() if not cpus.isdisjoint(own))
            free.setdefault(number, []).append(own)
    total = sum(map(len, free.values()))
    if total < count:
        return unbound(count, f"bind: core: the node has {total} cores for {count} ranks", warns=True)
    each = min(threads or total, total // count)
    order = sorted(free, key=lambda number: (not _has_card(topology, number) if count < len(free) else 0, number))
    taken: dict[int, list[frozenset[int]]] = {}
    for rank, view in enumerate(views):
        near = topology.gpu_domain(view.device)
        if near not in free:
            near = order[rank if count < len(order) else rank * len(order) // count]
        if len(free[near]) >= each:
            taken[rank] = _take(free, [near], each)
    for rank in range(count):  # those whose domain is full: in one that is not, else in several
        if rank not in taken:
            roomy = [number for number in order if len(free[number]) >= each]
            taken[rank] = _take(free, roomy[:1] or order, each)
    return [Binding.to(frozenset().union(*taken[rank]), topology) for rank in range(count)]


def _has_card(topology: Topology, number: int) -> bool:
    return any(topology.domain_of(near) == number for near in topology.cards.values())


def _take(free: Mapping[int, list[frozenset[int]]], numbers: Sequence[int], each: int) -> list[frozenset[int]]:
    found: list[frozenset[int]] = []
    for number in numbers:
        wanted = each - len(found)
        found += free[number][:wanted]
        del free[number][:wanted]
    return found


def cpus_of_a_job(
    wanted: int,
    mask: Collection[int],
    taken: Collection[int],
    topology: Topology,
    devices: Sequence[int] = (),
    turn: int = 0,
) -> tuple[int, ...]:
    """`wanted` CPUs of `mask` that no other job has, ascending; none where there are not as many.

    Those of as few NUMA domains as do, next to the GPUs `devices` where there is room; whole cores first.

    Args:
        turn: At which core of a domain to begin: queues that do not know of each other are not to begin at the same.
    """
    free = frozenset(mask).difference(taken)
    if not 0 < wanted <= len(free):
        return ()
    near = {topology.gpu_domain(str(device)) for device in devices}
    inside = {number: cpus & free for number, cpus in topology.domains.items() if cpus & free}

    def rank_of(number: int) -> tuple[bool, bool, int, int]:
        size = len(inside[number])
        return number not in near, size < wanted, size if size >= wanted else -size, number

    chosen: list[int] = []
    for number in sorted(inside, key=rank_of):
        cores = [core & inside[number] for core in topology.cores if core & inside[number]]
        cores.sort(key=min)
        begin = turn % max(1, len(cores))
        cores = sorted(cores[begin:] + cores[:begin], key=lambda core: -len(core))
        chosen += [cpu for core in cores for cpu in sorted(core)]
    return tuple(sorted(chosen[:wanted]))
