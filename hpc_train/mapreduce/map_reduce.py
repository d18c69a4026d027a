"""Map and reduce over all ranks: each block of rows on one of them, and partial results merged in a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpc_train.arguments import checked_arguments, not_allowed
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.table import Table
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.ragged import Ragged
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.mapreduce.blocks import Batch, BlockSource, ShardBlocks
from hpc_train.mapreduce.reducer import Reducer, Together
from hpc_train.mapreduce.reduction import reduce_blocks
from hpc_train.mapreduce.table_blocks import table_blocks

MapFn = Callable[[dict[str, np.ndarray]], Any]


@checked_arguments
def map_reduce(
    map_fn: MapFn | None, reducer: Reducer[Any] | Mapping[str, Reducer[Any]], source: HDF5Input | Table
) -> Any:
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
        source: Of an HDF5Input `batch_size`, `shuffle`, `seed`, `epochs` and `pad` do not matter; its own `map_fn` is
            refused, since it is for batches of TensorFlow. Of a Table, columns of numbers, truth values (0 and 1) and
            dates (seconds since 1970-01-01, UTC) are float64, NaN where a value is missing; texts are "" there.

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
    state = reduce_blocks(world, blocks_of(world, source), _adding(map_fn, whole), whole)
    return world.each(lambda: whole.result(state))


def _checked(map_fn: Any, reducer: Any, source: Any) -> Reducer[Any]:
    check_source("map_reduce", source, (HDF5Input, Table))
    if map_fn is not None and not callable(map_fn):
        raise not_allowed("map_reduce", "map_fn", map_fn, "a function of the rows of a block, or None")
    reducers = list(reducer.values()) if isinstance(reducer, Mapping) else [reducer]
    names = list(reducer) if isinstance(reducer, Mapping) else []
    is_named = all(isinstance(name, str) for name in names)
    if not reducers or not is_named or not all(isinstance(each, Reducer) for each in reducers):
        allowed = "one of ht.reducers, such as ht.reducers.Mean(), or a dict of several by name"
        raise not_allowed("map_reduce", "reducer", reducer, allowed)
    return Together(reducer) if isinstance(reducer, Mapping) else reducer


def check_source(where: str, source: Any, kinds: tuple[type, ...] = (HDF5Input,)) -> None:
    """UserError where `source` is no input of these `kinds` whose rows can be read as they are stored."""
    if not isinstance(source, kinds):
        raise not_allowed(where, "source", source, " or ".join(f"ht.{kind.__name__}(…)" for kind in kinds))
    if isinstance(source, HDF5Input) and source.map_fn is not None:
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


def blocks_of(world: World, source: HDF5Input | Table) -> BlockSource:
    """The rows of `source` in blocks, the same on all ranks. Collective.

    Raises:
        UserError: On all ranks, where it cannot be read.
    """
    return table_blocks(world, source) if isinstance(source, Table) else ShardBlocks(shared_shards(world, source))


def shared_shards(world: World, source: HDF5Input) -> ShardSet:
    """The shards of `source`, found and checked by the chief, on all ranks. Collective."""
    return ShardSet.from_json(world.on_chief(lambda: find_shards(source, in_batches=False).to_json()))
