"""However blocks are shared out, partial results are merged as the tree says, in the order of the blocks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.distributed.dealer import DONE, Shares
from hpc_train.mapreduce.tree import Node, Partials, Tree, moves


def merged(first: str, second: str) -> str:
    return f"({first}{second})"


def in_the_tree(first: int, end: int, level: int) -> str:
    """What merging the blocks of a node in the tree gives, by its definition."""
    if level == 0:
        return chr(65 + first)
    middle = first + (1 << level - 1)
    if middle >= end:
        return in_the_tree(first, end, level - 1)
    return merged(in_the_tree(first, middle, level - 1), in_the_tree(middle, end, level - 1))


@given(st.integers(1, 40), st.integers(1, 7), st.randoms(use_true_random=False))
def test_any_ranks_merge_blocks_in_the_same_way(blocks: int, ranks: int, chance: random.Random) -> None:
    tree = Tree(blocks)
    held = [Partials[str](tree, merged) for _ in range(ranks)]
    order = list(range(blocks))
    chance.shuffle(order)
    for block in order:
        held[chance.randrange(ranks)].add((0, block), chr(65 + block))
    for move in moves(tree, [sorted(partials.by_node) for partials in held]):
        assert move.source != move.target
        held[move.target].add(move.node, held[move.source].by_node.pop(move.node))
    assert [list(partials.by_node) for partials in held] == [[tree.root], *([] for _ in range(ranks - 1))]
    assert held[0].by_node[tree.root] == in_the_tree(0, blocks, tree.root[0])


def test_blocks_that_lie_together_are_few_nodes() -> None:
    tree, partials = Tree(1000), Partials[int](Tree(1000), int.__add__)
    for block in range(100, 901):
        partials.add((0, block), 1)
        assert len(partials.by_node) <= 2 * tree.root[0]
    assert sum(partials.by_node.values()) == 801


@given(st.integers(0, 300), st.integers(1, 9), st.randoms(use_true_random=False))
def test_each_block_is_dealt_once_whoever_is_slow(blocks: int, ranks: int, chance: random.Random) -> None:
    shares, taken = Shares(blocks, ranks), []
    speeds = [chance.random() for _ in range(ranks)]
    working = list(range(ranks))
    while working:
        rank = chance.choices(working, [speeds[k] + 0.01 for k in working])[0]
        run = shares.take(rank)
        if run == DONE:
            working.remove(rank)
        taken += range(*run)
    assert sorted(taken) == list(range(blocks))


def test_the_first_to_be_done_takes_from_the_one_with_most() -> None:
    shares = Shares(200, 2)
    runs = [shares.take(0)]
    while runs[-1] != DONE:
        runs.append(shares.take(0))
    assert [run for run in runs if run[0] < 100] and runs[0] == (0, 13)
    first_taken = next(run for run in runs if run[0] >= 100)
    assert first_taken[0] == 150, "from the middle of the other's share on"
    assert shares.take(1) == DONE


def test_when_a_rank_has_failed_there_is_no_more() -> None:
    shares = Shares(100, 2)
    shares.end()
    assert (shares.take(0), shares.take(1)) == (DONE, DONE)


@pytest.mark.parametrize(("blocks", "root"), [(1, (0, 0)), (2, (1, 0)), (3, (2, 0)), (4, (2, 0)), (5, (3, 0))])
def test_the_root_has_all_blocks(blocks: int, root: Node) -> None:
    assert Tree(blocks).root == root
