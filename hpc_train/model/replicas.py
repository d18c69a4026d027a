"""Whether ranks that hold the same variable, or the same part of one, have the same values of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_train.distributed.world import World


@dataclass(frozen=True)
class Differing:
    """Ranks whose values are not those of others that hold the same.

    Attributes:
        ranks: Ascending. name: The first variable of the lowest of them that differs.
        usual: The lowest rank that has the usual values of it. most: Whether more than one rank has them.
    """

    ranks: tuple[int, ...]
    name: str
    usual: int
    most: bool


def differing(world: World, digests: Mapping[str, int], lowest: Mapping[str, np.ndarray]) -> Differing | None:
    """The ranks that differ; None where all are alike, which costs little. Collective.

    Args:
        digests: Of this rank's values, by variable, below 2^53.
        lowest: Of variables of which ranks hold parts, by rank the lowest one with the same part; all have the others.
    """
    parts = [name for name in digests if name in lowest and len(set(lowest[name].tolist())) < world.size]
    table = np.zeros((len(parts), world.size))
    table[:, world.rank] = [digests[name] for name in parts]
    table = world.sum(table) if parts else table
    alike = all(row[world.rank] == row[lowest[name][world.rank]] for name, row in zip(parts, table, strict=True))
    wholes = [digest for name, digest in digests.items() if name not in lowest]
    digest = hashlib.sha256(repr(wholes).encode()).hexdigest()
    on_chief = world.broadcast(digest)
    if world.first(True if digest != on_chief or not alike else None) is None:
        return None
    everyone = np.zeros(world.size, np.int64)
    return first_differing(world.all_gather(list(digests.values())), [(n, lowest.get(n, everyone)) for n in digests])


def first_differing(digests: Sequence[Sequence[int]], variables: Sequence[tuple[str, np.ndarray]]) -> Differing | None:
    """The ranks that differ, given their digests of `variables` and which rank is the lowest with the same. Pure."""
    found: list[tuple[int, str, int, bool]] = []
    for place, (name, lowest) in enumerate(variables):
        for first in np.unique(lowest).tolist():
            holders = np.flatnonzero(lowest == first).tolist()
            usual, count = Counter(digests[rank][place] for rank in holders).most_common(1)[0]  # the first of equals
            having = [rank for rank in holders if digests[rank][place] == usual]
            found += [(rank, name, having[0], count > 1) for rank in holders if rank not in having]
    if not found:
        return None
    ranks = tuple(sorted({rank for rank, *_ in found}))
    _, name, usual, most = next(one for one in found if one[0] == ranks[0])
    return Differing(ranks, name, usual, most)
