"""sbatch's --exclude for nodes that a job has named slow, beside those that its user leaves out. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_EXCLUDE = re.compile("--exclude?=(.+)")
"""sbatch takes abbreviations; a shorter one could be another option."""


@dataclass(frozen=True)
class Exclusion:
    """Which nodes a job is submitted without.

    Attributes:
        nodes: As Slurm calls them. option: of sbatch, with what the user leaves out; None: there is nothing to add.
        notes: What there is to say, a line each.
    """

    nodes: tuple[str, ...] = ()
    option: str | None = None
    notes: tuple[str, ...] = ()


def exclusion(slow: Sequence[str], known: Collection[str] | None, options: Sequence[str]) -> Exclusion:
    """What leaves the nodes `slow` out.

    Args:
        slow: As the machines call themselves. known: all nodes of the cluster; None: not known. options: of
            `resources.sbatch`, whose last --exclude is the one that counts for sbatch.
    """
    if not slow:
        return Exclusion()
    short = {name.partition(".")[0]: name for name in known or ()}
    of_slurm = {name: name if known is None or name in known else short.get(name.partition(".")[0]) for name in slow}
    nodes = tuple(dict.fromkeys(name for name in of_slurm.values() if name is not None))
    strangers = [name for name, own in of_slurm.items() if own is None]
    notes = [f"{', '.join(strangers)}: named slow, but not a node of this cluster"] if strangers else []
    own = [match[1] for option in options if (match := _EXCLUDE.fullmatch(option))][-1:]
    if nodes and own and "/" in own[0]:
        told = f"{', '.join(nodes)}: named slow, but `resources.sbatch` leaves out the nodes in a file; add them there"
        return Exclusion(notes=(*notes, told))
    return Exclusion(nodes, f"--exclude={','.join([*own, *nodes])}" if nodes else None, tuple(notes))
