"""On which nodes of its allocation a job that lost some goes on: decided from what Slurm and the nodes say. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from hpc_train.outcome import EXIT_FAILED, EXIT_LOST_NODE, OTHER, Again, outcome_of, signal_name
from hpc_train.telemetry.units import counted

UNUSABLE = frozenset(["down", "drained", "draining", "drain", "drng", "fail", "failing", "error"])
"""States of sinfo of a node that is to be left alone."""
_GONE = frozenset(["down", "error"])
_FLAGS = "*~#!%$@^-"
"""What sinfo adds to a state, such as `*` for a node that does not respond."""
_NAMED = 8


@dataclass(frozen=True)
class Node:
    """A node of the allocation.

    Attributes:
        state: As sinfo has it; "" where it says none.
        answers: A step has just run there.
        used: The run that has ended had ranks there.
        slow: It is said to hold the others up.
    """

    name: str
    state: str = ""
    answers: bool = True
    used: bool = True
    slow: bool = False

    @property
    def problem(self) -> str | None:
        """Why it cannot be used, or None."""
        word = self.state.lower().rstrip(_FLAGS)
        if word in UNUSABLE:
            return f"{self.name} is {word}"
        return None if self.answers else f"{self.name} does not answer"

    @property
    def lost(self) -> bool:
        """Whether its ranks are, too."""
        return self.used and (not self.answers or self.state.lower().rstrip(_FLAGS) in _GONE)


@dataclass(frozen=True)
class Wanted:
    """What a job wants: ranks on `nodes` nodes, or on `min_nodes` at least, `ranks_per_node` on each."""

    nodes: int
    min_nodes: int
    ranks_per_node: int


@dataclass(frozen=True)
class NextRun:
    """What becomes of the job.

    Attributes:
        action: "run": on `nodes`. "requeue": it wants other nodes. "end": this is no matter of nodes.
        why: In words, on one line and without a semicolon.
    """

    action: Literal["run", "requeue", "end"]
    nodes: tuple[str, ...] = ()
    why: str = ""


def next_run(nodes: Sequence[Node], wanted: Wanted, code: int | None, fits: Callable[[int], bool]) -> NextRun:
    """Where the job goes on, after its ranks have ended with `code`; None: where it begins. Pure.

    A node that is slow is left out where `min_nodes` others are left on which the job can run. A failure of the job's
    own (a traceback, an exit code of a program) is no matter of nodes, unless the job lost one. Nor is a size that does
    not suit the job where it begins, which its ranks are left to say.

    Args:
        nodes: Of the allocation, in its order, those that are gone included.
        fits: Whether the job can run on so many ranks.
    """
    if code is not None and _is_no_matter_of_nodes(code, nodes):
        return NextRun("end", why=_ended(code))
    if code is None and not fits(wanted.nodes * wanted.ranks_per_node):
        return NextRun("end", why=f"the job cannot run on the ranks of {counted(wanted.nodes, 'node')}")
    problems = [node.problem for node in nodes if node.problem is not None]
    usable = [node for node in nodes if node.problem is None]

    def most(nodes: Sequence[Node]) -> int | None:
        counts = range(min(len(nodes), wanted.nodes), wanted.min_nodes - 1, -1)
        return next((count for count in counts if fits(count * wanted.ranks_per_node)), None)

    slow = [f"{node.name} is slow" for node in usable if node.slow]
    if slow and most(quick := [node for node in usable if not node.slow]) is not None:
        problems, usable = problems + slow, quick
    seen = _listed(problems) if problems else _ended(code) if code is not None else ""
    if (count := most(usable)) is not None:
        kept = [node for node in usable if node.used][:count]  # where its data may be in memory
        kept += [node for node in usable if not node.used][: count - len(kept)]
        names = tuple(node.name for node in usable if node in kept)
        ranks = counted(count * wanted.ranks_per_node, "rank")
        where = f"{ranks} on {counted(count, 'node')}: {_listed(names)}"
        return NextRun("run", names, f"{seen}, {where}" if seen else "")
    few = f"{counted(len(usable), 'usable node')} left of {len(nodes)}, and min_nodes is {wanted.min_nodes}"
    if len(usable) >= wanted.min_nodes:
        few = f"the job cannot run on the ranks of {counted(len(usable), 'usable node')}"
    return NextRun("requeue", why=f"{seen}, {few}")


def _is_no_matter_of_nodes(code: int, nodes: Sequence[Node]) -> bool:
    outcome = outcome_of(code)
    own = code == EXIT_FAILED or outcome is OTHER
    return Again.RESTART not in outcome.again or (own and not any(node.lost for node in nodes))


def _ended(code: int) -> str:
    if code == EXIT_LOST_NODE:
        return "mpirun lost a node"
    name = signal_name(code)
    return f"the ranks ended with code {code}" + (f" ({name})" if name else "")


def _listed(texts: Collection[str]) -> str:
    more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return ", ".join([*list(texts)[:_NAMED], *more])
