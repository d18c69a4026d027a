"""All blocks of rows reduced over all ranks: dealt to them, and partial results merged in a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpc_train.distributed.dealer import deal
from hpc_train.distributed.messages import broadcast, receive, send
from hpc_train.distributed.world import World
from hpc_train.mapreduce.blocks import BlockSource
from hpc_train.mapreduce.packing import sendable, unpack
from hpc_train.mapreduce.reducer import Reducer
from hpc_train.mapreduce.tree import Partials, Tree, moves


def reduce_blocks(world: World, source: BlockSource, add: Callable[[Any, Any], Any], reducer: Reducer[Any]) -> Any:
    """The state of `reducer` of all rows of `source`, the same on all ranks. Collective.

    Args:
        add: Adds the rows of a block, or of a part of one, to a state of `reducer`; may change the state.

    Raises: See map_reduce.
    """
    if not source.blocks:
        return unpack(sendable(reducer.init()))
    tree = Tree(source.blocks)
    partials = Partials(tree, reducer.merge)
    checked = list[bytes]()
    with source.reader() as read:

        def work(block: int) -> None:
            state = reducer.init()
            for rows in read(block):
                state = add(state, rows)
            if not checked:
                checked.append(sendable(state))
            partials.add((0, block), state)

        deal(world, tree.blocks, work)
    gather(world, tree, partials)
    whole = world.each(lambda: sendable(partials.by_node[tree.root]) if world.is_chief else b"")
    return unpack(broadcast(world, whole))


def gather(world: World, tree: Tree, partials: Partials[Any]) -> None:
    """Brings all partial results together, on the chief. Collective.

    Raises:
        As World.each, where merging raises on a rank.
    """
    held = world.all_gather(sorted(partials.by_node))
    failure: BaseException | None = None
    for move in moves(tree, [[(level, k) for level, k in nodes] for nodes in held]):
        if world.rank == move.source:
            data = b""
            if failure is None and move.node in partials.by_node:
                try:
                    data = sendable(partials.by_node.pop(move.node))
                except BaseException as error:
                    failure = error
            send(world, data, move.target)
        elif world.rank == move.target:
            data = receive(world, move.source)
            try:
                if failure is None and data:
                    partials.add(move.node, unpack(data))
            except BaseException as error:  # the others wait for what this rank has
                failure = error

    def check() -> None:
        if failure is not None:
            raise failure

    world.each(check)
