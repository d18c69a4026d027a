"""Map and reduce over all ranks: each block of rows on one of them, and partial results merged in a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpc_train.arguments import checked_arguments, not_allowed
from hpc_train.config.specs import HDF5Input
from hpc_train.data.hdf5.reader import Reader, Rows
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.ragged import Ragged
from hpc_train.distributed.dealer import deal
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.messages import broadcast, receive, send
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.mapreduce.packing import sendable, unpack
from hpc_train.mapreduce.reducer import Reducer, Together
from hpc_train.mapreduce.tree import Partials, Tree, moves

Batch = Mapping[str, Rows]
"""The rows of a block, by column."""
BLOCK_ROWS = 1024
"""Of fewer rows, calls take longer than what they compute."""
BLOCK_BYTES = 8 << 20
"""Of more, the copies that reducers make would take much memory."""
MapFn = Callable[[dict[str, np.ndarray]], Any]


@checked_arguments
def map_reduce(map_fn: MapFn | None, reducer: Reducer[Any] | Mapping[str, Reducer[Any]], source: HDF5Input) -> Any:
    """Reduces all rows of `source` over all ranks; the result, the same on each of them. Collective.

    Rows come in blocks, which depend on the files alone. Each block is read by one rank, which the chief chooses while
    they work, mapped, and added to a reducer's initial state; the states are merged in a tree over the blocks. So the
    result is the same to the bit on any number of ranks, and each row counts once, whatever slice a rank has.

    Args:
        map_fn: Of the rows of a block, a dict of arrays `[rows, ...]` by feature and label (texts and rows of different
            lengths as object arrays), what the reducer takes: arrays, of any number of rows. None: the array of the
            one column, or the dict.
        reducer: Of hpc_train.reducers; or several by name, where map_fn returns a dict with the same names: all of
            them in one pass.
        source: `batch_size`, `shuffle`, `seed`, `epochs` and `pad` do not matter; its own `map_fn` is refused, since
            it is for batches of TensorFlow.

    Returns:
        What the reducer's `result` returns; of several a dict by name.

    Raises:
        UserError: On all ranks, where an argument is not allowed or data cannot be read.
        RankError: On the other ranks, where map_fn or a reducer raises on one.
    """
    world = join_world()
    if world.size > 1:
        install_excepthook(world)
    whole = world.each(lambda: _checked(map_fn, reducer, source))
    state = reduce_shards(world, _adding(map_fn, whole), whole, shared_shards(world, source))
    return world.each(lambda: whole.result(state))


def _checked(map_fn: Any, reducer: Any, source: Any) -> Reducer[Any]:
    check_source("map_reduce", source)
    if map_fn is not None and not callable(map_fn):
        raise not_allowed("map_reduce", "map_fn", map_fn, "a function of the rows of a block, or None")
    reducers = list(reducer.values()) if isinstance(reducer, Mapping) else [reducer]
    names = list(reducer) if isinstance(reducer, Mapping) else []
    is_named = all(isinstance(name, str) for name in names)
    if not reducers or not is_named or not all(isinstance(each, Reducer) for each in reducers):
        allowed = "one of ht.reducers, such as ht.reducers.Mean(), or a dict of several by name"
        raise not_allowed("map_reduce", "reducer", reducer, allowed)
    return Together(reducer) if isinstance(reducer, Mapping) else reducer


def check_source(where: str, source: Any) -> None:
    """UserError where `source` is no input whose rows can be read as they are stored."""
    if not isinstance(source, HDF5Input):
        raise not_allowed(where, "source", source, "an ht.HDF5Input")
    if source.map_fn is not None:
        raise UserError(f"{where}: source: its map_fn is for batches of TensorFlow; leave it out")


def _adding(map_fn: MapFn | None, reducer: Reducer[Any]) -> Callable[[Any, Batch], Any]:
    """What adds the rows of a block to a state."""

    def add(state: Any, rows: Batch) -> Any:
        if map_fn is not None:
            return reducer.add(state, map_fn({name: plain(values) for name, values in rows.items()}))
        return reducer.add(state, rows if isinstance(reducer, Together) else _only(rows))

    return add


def _only(rows: Batch) -> Rows:
    if len(rows) != 1:
        raise UserError(
            f"map_reduce: without a map_fn one reducer is for one column, but the input has {', '.join(rows)}; give "
            "`features` and `label=()`, a map_fn, or a reducer for each"
        )
    return next(iter(rows.values()))


def plain(values: Rows) -> np.ndarray:
    """Rows of a column as users know them: texts as str, rows of different lengths as arrays, in arrays of objects."""
    if not isinstance(values, Ragged):
        if values.dtype.kind != "S":
            return values
        texts = values.reshape(-1).tolist()
    elif values.dtype.kind == "S":
        texts = values.texts().reshape(-1).tolist()
    else:
        found = np.empty(len(values), object)
        ends = np.cumsum(values.lengths)
        found[:] = [values.values[end - n : end] for end, n in zip(ends, values.lengths, strict=True)]
        return found
    shape = values.lengths.shape if isinstance(values, Ragged) else values.shape
    found = np.empty(len(texts), object)
    found[:] = [text.decode() for text in texts]
    return found.reshape(shape)


def shared_shards(world: World, source: HDF5Input) -> ShardSet:
    """The shards of `source`, found and checked by the chief, on all ranks. Collective."""
    return ShardSet.from_json(world.on_chief(lambda: find_shards(source, in_batches=False).to_json()))


def reduce_shards(world: World, add: Callable[[Any, Batch], Any], reducer: Reducer[Any], shards: ShardSet) -> Any:
    """The state of `reducer` of all rows of `shards`, the same on all ranks. Collective.

    Args:
        add: Adds the rows of a block to a state of `reducer`; may change the state.

    Raises: See map_reduce.
    """
    names = [column.key for column in shards.columns]
    starts = shards.blocks_of(BLOCK_ROWS, BLOCK_BYTES).starts
    tree = Tree(len(starts) - 1)
    partials = Partials(tree, reducer.merge)
    longest, checked = int(np.diff(starts).max()), list[bytes]()
    with Reader(shards, cached_rows=longest, threads=1) as reader:

        def work(block: int) -> None:
            state = add(reducer.init(), dict(zip(names, read(block), strict=True)))
            if not checked:
                checked.append(sendable(state))
            partials.add((0, block), state)

        def read(block: int) -> list[Rows]:
            try:
                return reader.read(np.arange(starts[block], starts[block + 1]))
            except OSError as error:
                raise UserError(f"{error}; write the shard anew, or leave it out") from None

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
