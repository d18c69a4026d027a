"""Keras's preprocessing layers adapted to data of any size: all of them in one pass, on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpc_train.arguments import checked_arguments, not_allowed
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.distributed.devices import share_cores
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.startup import join_world
from hpc_train.errors import UserError, did_you_mean
from hpc_train.lazy import keras
from hpc_train.mapreduce.adapters import Adapter, adapter_of
from hpc_train.mapreduce.blocks import ShardBlocks
from hpc_train.mapreduce.map_reduce import check_source, shared_shards
from hpc_train.mapreduce.reducer import Together
from hpc_train.mapreduce.reduction import reduce_blocks


@checked_arguments
def adapt(layer: Any, source: HDF5Input) -> Any:
    """Adapts preprocessing layers of Keras to all rows of `source`, in one pass over all ranks. Collective.

    On each rank they end as by their own `adapt` of the same rows: Normalization (to rounding), StringLookup,
    IntegerLookup and TextVectorization with the same numbers and words, Discretization within its `epsilon`. Where a
    layer counts documents (tf_idf), each row is one.

    Args:
        layer: One layer, for an input of one feature; or a dict of layers by feature; or a FeatureSpace, whose features
            are called as those of the input. Rows that are one value reach a layer as `[B, 1]`.
        source: `features` chooses the columns; a label is not read. `batch_size`, `shuffle`, `seed`, `epochs` and `pad`
            do not matter; its own `map_fn` is refused.

    Returns:
        `layer`.

    Raises:
        UserError: On all ranks: a layer that cannot be adapted or has its numbers already, a feature that is not there
            or does not go with its layer, data that cannot be read.
    """
    world = join_world()
    if world.size > 1:
        install_excepthook(world)
    share_cores(world)
    layers = world.each(lambda: _layers_of(layer, source))
    if not layers:  # of a FeatureSpace
        world.each(lambda: _finish(layer, {}, {}))
        return layer
    names = None if None in layers else tuple(layers)
    shards = shared_shards(world, replace(source, label=(), features=source.features or names))
    adapters = world.each(lambda: _adapters(layers, shards))
    shards = _with(shards, adapters)

    def add(states: dict[str, Any], rows: Mapping[str, Rows]) -> dict[str, Any]:
        return {name: a.reducer.add(states[name], a.values(rows[name])) for name, a in adapters.items()}

    together = Together({name: adapter.reducer for name, adapter in adapters.items()})
    states = reduce_blocks(world, ShardBlocks(shards), add, together)

    world.each(lambda: _finish(layer, adapters, states))
    return layer


def _finish(layer: Any, adapters: Mapping[str, Adapter], states: Mapping[str, Any]) -> None:
    for name, adapter in adapters.items():
        adapter.finish(states[name])
    if isinstance(layer, keras.utils.FeatureSpace):
        layer._is_adapted = True
        layer.get_encoded_features()
        layer.built = layer._sublayers_built = True


def _layers_of(layer: Any, source: Any) -> Mapping[Any, Any]:
    """The layers by feature; by None where there is one for the only feature."""
    check_source("adapt", source)
    if isinstance(layer, keras.utils.FeatureSpace):
        found: Mapping[Any, Any] = {name: layer.preprocessors[name] for name in layer._list_adaptable_preprocessors()}
    else:
        found = layer if isinstance(layer, Mapping) else {None: layer}
        if not found or not all(name is None or isinstance(name, str) for name in found):
            raise not_allowed("adapt", "layer", layer, "a layer, a dict of layers by feature, or a FeatureSpace")
        twice = [name for name in found if sum(each is found[name] for each in found.values()) > 1]
        if twice:
            raise UserError(f"adapt: {' and '.join(map(repr, twice))} have one layer; give each its own")
    return found


def _adapters(layers: Mapping[Any, Any], shards: ShardSet) -> dict[str, Adapter]:
    columns = {column.key: column for column in shards.features}
    if None in layers:
        if len(columns) != 1:
            raise UserError(
                f"adapt: one layer is for one feature, but the input has {', '.join(columns)}; name one in `features`, "
                "or give a dict of layers by feature"
            )
        layers = {next(iter(columns)): layers[None]}
    for name in layers:
        if name not in columns:
            hint = did_you_mean(str(name), columns)
            raise UserError(f"adapt: the input has no feature {name!r}; {hint}it has {', '.join(columns)}")
    return {name: adapter_of(layer, f"the layer of {name!r}", columns[name]) for name, layer in layers.items()}


def _with(shards: ShardSet, names: Mapping[str, Any]) -> ShardSet:
    """The same shards with the features that have a layer."""
    kept = [number for number, column in enumerate(shards.columns) if column.key in names]
    return replace(
        shards,
        features=tuple(shards.columns[number] for number in kept),
        labels=(),
        layouts=tuple(tuple(shard[number] for number in kept) for shard in shards.layouts),
    )
