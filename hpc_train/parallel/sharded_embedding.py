"""An embedding whose table is spread over ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf

from hpc_train.arguments import check_count, check_type, checked_arguments
from hpc_train.distributed.building import warn_of_whole
from hpc_train.distributed.collectives import cut
from hpc_train.distributed.exchange import groups
from hpc_train.distributed.placement import outside, placement, room_here
from hpc_train.distributed.share import Share, set_share
from hpc_train.errors import UserError
from hpc_train.parallel.block_values import block_values
from hpc_train.parallel.divided import shortened
from hpc_train.parallel.ids import check_kind, in_table, whole_numbers
from hpc_train.parallel.row_exchange import looked_up, own_rows, read_rows
from hpc_train.telemetry.units import size

MOST_ROWS = 2**31 - 1
"""On a rank: TensorFlow counts shapes in 32 bits where it makes a tensor."""
_RETIRED = {
    "input_dim": "is called rows",
    "output_dim": "is called width",
    "embeddings_regularizer": "would touch all rows of the table in each step; use the optimizer's weight_decay",
    "embeddings_constraint": "would touch all rows of the table in each step; normalize those that are looked up",
    "weights": "no process holds them; use a warm start, or embeddings_initializer=keras.initializers.Constant(…)",
}
"""Arguments of keras.layers.Embedding that are none here."""


@partial(checked_arguments, retired=_RETIRED)
@keras.saving.register_keras_serializable(package="hpc_train")
class ShardedEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """A keras.layers.Embedding of which each rank of a synchronous job holds a part of the rows.

    The ranks look rows up together, in each step and in each batch of an evaluation that all ranks make: each gets from
    the others the rows of its own batch, and they the gradients of theirs. What a step costs is a matter of the ids of
    its batches, not of the rows of the table, where the optimizer leaves other rows alone (SGD without momentum,
    Adagrad). A process without other ranks has the whole table, and the layer is an ordinary one.

    Initial values are drawn in blocks of 4,096 rows, so that they are the same on any number of ranks. An initializer
    of your own is asked for each block as for a variable of that shape, with a seed of the block's.

    Args:
        rows: Of the table; ids are 0 to `rows` - 1.
        width: Numbers of a row.
        embeddings_initializer: Zeros, Ones, Constant, or one of Keras's or your own that has a seed; not Orthogonal.
        mask_zero: As in keras.layers.Embedding: whether 0 is no id but padding, to be left out by layers that follow.
        trainable, dtype, name: As in every Keras layer.

    Raises:
        UserError: A number out of range, or an initializer that cannot draw blocks. When it is called: ids that are
        not whole numbers, or, naming them, not in the table; in a tf.function the latter is
        tf.errors.InvalidArgumentError, and one that XLA compiles (jit_compile=True, outside of jobs) does not look.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        trainable: bool = True,
        dtype: Any = None,
        name: str | None = None,
    ) -> None:
        check_count("ShardedEmbedding", "rows", rows)
        check_count("ShardedEmbedding", "width", width)
        check_type("ShardedEmbedding", "mask_zero", mask_zero, bool, "true or false")
        mesh, self._outside = placement(), outside()
        parts = cut(rows, mesh.data if mesh else 1)
        self._begin = sum(parts[: mesh.data_index]) if mesh else 0
        self._end, self._parts = self._begin + parts[mesh.data_index if mesh else 0], len(parts)
        if self._outside is not None:
            self._begin = self._end = 0
        try:
            super().__init__(trainable=trainable, dtype=dtype, name=name)
            self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
            self._values = block_values(self.embeddings_initializer, rows, width, self._begin, self._end)
        except UserError:
            raise
        except Exception as error:  # Keras's own words, of a value that it does not take
            raise UserError(f"ShardedEmbedding: {shortened(error)}") from None
        if mesh is None and self._outside is None:
            warn_of_whole(f"{self.name!r} (ht.parallel.ShardedEmbedding)")
        self.rows, self.width, self.mask_zero = rows, width, mask_zero
        self.supports_masking, self.autocast = mask_zero, False
        self.supports_jit = self._outside is None  # XLA does not read files

    def build(self, input_shape: Any = None) -> None:
        """Makes this rank's rows of the table, called `embeddings` as Keras's."""
        shape = (self._end - self._begin, self.width)
        if shape[0] > MOST_ROWS:
            raise UserError(
                f"{self.name} (ShardedEmbedding): {shape[0]:,} of {self.rows:,} rows on one rank are more than the "
                f"{MOST_ROWS:,} that a tensor can have; take at least {-(-self.rows // MOST_ROWS):,} ranks (of a mesh, "
                "copies), or fewer rows"
            )
        self._check_room(shape[0] * self.width * tf.as_dtype(self.variable_dtype).size)
        self.embeddings = self.add_weight(name="embeddings", shape=shape, initializer=self._values)
        if self._parts > 1 or self._outside is not None:
            set_share(self.embeddings, Share((self.rows, self.width), 0, self._begin, self._end), averaged="alone")
        self.built = True

    def _check_room(self, nbytes: int) -> None:
        """UserError where this rank has no memory for its rows, of so many bytes."""
        room = room_here()
        if room is None:
            return
        if nbytes > room.left:
            whole = nbytes * self.rows // (self._end - self._begin)
            ways = "fewer rows or numbers of a row, or nodes with more memory"
            if room.left >= (a_row := whole // self.rows):
                ranks = -(-self.rows // (room.left // a_row))
                ways = f"at least {ranks:,} ranks with as much (of a mesh, copies), {ways}"
            raise UserError(
                f"{self.name} (ShardedEmbedding): this rank's {self._end - self._begin:,} of {self.rows:,} rows "
                f"need {size(nbytes)} of the host's memory, of which it has {size(room.left)}; take {ways}; "
                "`hpc-train plan JOB --ranks N` shows what fits"
            )
        room.left -= nbytes

    def call(self, inputs: Any) -> Any:
        """The rows of `inputs`. Collective in a training step of several ranks."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        layer = f"{self.name} (ShardedEmbedding)"
        given = whole_numbers(inputs, layer)
        ids = in_table(tf.reshape(given, [-1]), self.rows, layer)
        table, found = self.embeddings.value, groups()
        if self._outside is not None and self.name in self._outside:
            rows = read_rows(self._outside[self.name], ids, table)
        elif self._outside is not None or (self._parts > 1 and placement() is not None):
            rows = own_rows(table, self._begin, ids)  # the model is tried out, of which only shapes matter
        elif found is not None:
            assert found.data.ranks == self._parts, "the ranks that train are those of the mesh that the model is for"
            rows = looked_up(table, self.rows, self._begin, ids, found.data)
        elif self._parts == 1:
            rows = tf.gather(table, ids)
        else:
            raise UserError(
                f"{self.name} (ShardedEmbedding) is spread over {self._parts} ranks, and is called outside of a step: "
                "hooks, callbacks and serving functions cannot call it; build the model again in a process of its own, "
                "from a checkpoint or an export"
            )
        shape = tf.concat([tf.shape(given), [self.width]], 0)
        result = tf.reshape(tf.cast(rows, self.compute_dtype), shape)
        result.set_shape([*given.shape, self.width])
        return result

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Which ids are not padding; None without mask_zero, and where rows have lengths of their own."""
        ragged = isinstance(inputs, tf.RaggedTensor) or getattr(inputs, "ragged", False)
        return keras.ops.not_equal(inputs, 0) if self.mask_zero and not ragged else None

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """One axis more, of `width`."""
        return (*input_shape, self.width)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Without a call: nothing is exchanged."""
        check_kind(inputs, f"{self.name} (ShardedEmbedding)")
        ragged = getattr(inputs, "ragged", False)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype, ragged=ragged)

    def get_config(self) -> dict[str, Any]:
        """For a layer of the whole table, wherever that is made again."""
        own = {"rows": self.rows, "width": self.width, "mask_zero": self.mask_zero}
        initializer = keras.initializers.serialize(self.embeddings_initializer)
        found = {**super().get_config(), **own, "embeddings_initializer": initializer}
        return found if self._outside is None else {**found, "outside": True}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ShardedEmbedding:
        """As of every layer; UserError where the rows are not in the file that is loaded, but in shards beside it."""
        own = dict(config)
        if own.pop("outside", False) and outside() is None:
            raise UserError(
                f"{config.get('name')} (ShardedEmbedding): its rows lie in the folder tables/ beside this file; load "
                "the export with hpc_train.load_exported_model(FOLDER)"
            )
        made: ShardedEmbedding = super().from_config(own)
        return made


def tables_of(model: keras.Model) -> dict[str, Any]:
    """The variables that hold the tables of `model`, or this rank's rows of them, by the layer's name.

    Raises:
        UserError: Two layers have the same name, by which their rows are to be found outside of the model.
    """
    built = (layer for layer in model._flatten_layers() if isinstance(layer, ShardedEmbedding) and layer.built)
    layers = {id(layer): layer for layer in built}
    found: dict[str, Any] = {}
    for layer in layers.values():
        if layer.name in found and layer._outside is not None:
            raise UserError(
                f"two layers (ShardedEmbedding) are called {layer.name!r}, whose rows are to be exported as shards; "
                "give each a name of its own"
            )
        found[layer.name if layer.name not in found else f"{layer.name}#{len(found)}"] = layer.embeddings
    return found
