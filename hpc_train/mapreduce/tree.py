"""The tree in which partial results are merged: the same for the same blocks, whoever has worked on them. Pure.

Node (level, k) stands for the blocks from k times 2^level on, 2^level of them; its children are (level - 1, 2k) and
(level - 1, 2k + 1). Where the second one would begin behind the last block, a node is what its first child is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hpc_train.distributed.roles import CHIEF_RANK

S = TypeVar("S")
Node = tuple[int, int]


@dataclass(frozen=True)
class Tree:
    """Of `blocks` blocks, of which there is one at least."""

    blocks: int

    @property
    def root(self) -> Node:
        """The node of all blocks."""
        return (self.blocks - 1).bit_length(), 0

    def is_empty(self, node: Node) -> bool:
        """Whether it has no block."""
        level, k = node
        return k << level >= self.blocks


class Partials(Generic[S]):
    """What is known of some blocks: of the fewest nodes that have them all.

    Args:
        merge: Of what is known of two nodes what is known of both; the first one's blocks come first.
    """

    def __init__(self, tree: Tree, merge: Callable[[S, S], S]) -> None:
        self._tree, self._merge = tree, merge
        self.by_node: dict[Node, S] = {}

    def add(self, node: Node, state: S) -> None:
        """Adds what is known of one node more."""
        while node != self._tree.root:
            level, k = node
            sibling = (level, k ^ 1)
            if sibling in self.by_node:
                other = self.by_node.pop(sibling)
                state = self._merge(other, state) if k % 2 else self._merge(state, other)
            elif not self._tree.is_empty(sibling):
                break
            node = (level + 1, k // 2)
        self.by_node[node] = state


@dataclass(frozen=True)
class Move:
    """What rank `source` knows of `node` goes to rank `target`."""

    node: Node
    source: int
    target: int


def moves(tree: Tree, held: Sequence[Sequence[Node]]) -> list[Move]:
    """In what order nodes go to other ranks, until the chief has the root.

    A node goes to the rank that has its first sibling.

    Args:
        held: The nodes that each rank has; together they have each block once.
    """
    where = {node: rank for rank, nodes in enumerate(held) for node in nodes}
    found = []
    for level in range(tree.root[0]):
        for node in sorted(node for node in where if node[0] == level):
            k, rank = node[1], where.pop(node)
            if k % 2:
                first = where[level + 1, k // 2]
                if rank != first:
                    found.append(Move(node, rank, first))
            else:
                where[level + 1, k // 2] = rank
    if where[tree.root] != CHIEF_RANK:
        found.append(Move(tree.root, where[tree.root], CHIEF_RANK))
    return found
