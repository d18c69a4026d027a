"""An embedding whose table is divided by the rows of the vocabulary."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from hpc_train.arguments import checked_arguments
from hpc_train.distributed.share import share_of
from hpc_train.distributed.tensor_parallel import reduced
from hpc_train.parallel.divided import Divided
from hpc_train.parallel.ids import check_kind, in_table, whole_numbers


@checked_arguments
@keras.saving.register_keras_serializable(package="hpc_train")
class Embedding(Divided, keras.layers.Embedding):  # type: ignore[misc]
    """keras.layers.Embedding whose rows are divided among the ranks of the model axis (arXiv:1909.08053, section 3).

    Each rank looks up the ids that it has rows of; the sum over ranks is the embedding of all ids, whole on all ranks.
    The numbers of rows need not divide evenly: the first ranks then have one more.

    Args:
        input_dim, output_dim: Rows of the table, and numbers of each, as in keras.layers.Embedding.
        Others as those of keras.layers.Embedding; regularizers and constraints as in ColumnDense.

    Raises:
        UserError: In a job with run.mesh, where the table cannot be divided. Ids that are no whole numbers.
        InvalidArgumentError: An id below 0, or not below `input_dim`; it says how many there are, and the first ones.
            Keras would take -1 for the last row, and on a GPU zeros for ids beyond it. A function that XLA compiles
            (jit_compile=True, outside of jobs) does not look at them.
    """

    cut_along: ClassVar[dict[str, int]] = {"embeddings": 0}
    even: ClassVar[bool] = False
    width_called: ClassVar[str] = "input_dim"

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        weights = kwargs.pop("weights", None)
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer,
            embeddings_regularizer,
            embeddings_constraint,
            mask_zero,
            **kwargs,
        )
        self.whole_only(weights=weights, lora_rank=self.lora_rank, quantization_config=self.quantization_config)
        if weights is not None:
            self.build()
            self.set_weights(weights if isinstance(weights, list) else [weights])

    def call(self, inputs: Any) -> Any:
        """The rows of all ids, whole on all ranks."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        layer = f"{self.name} (Embedding)"
        ids = in_table(whole_numbers(inputs, layer), self.input_dim, layer)
        if self.mesh is None:
            return super().call(ids)
        share = share_of(self._embeddings)
        assert share is not None, "a divided table"
        own = tf.logical_and(ids >= share.start, ids < share.stop)
        rows = tf.gather(self.embeddings, tf.where(own, ids - share.start, tf.zeros_like(ids)))
        rows = keras.ops.cast(rows, self.compute_dtype)
        return reduced(tf.where(own[..., tf.newaxis], rows, tf.zeros_like(rows)))

    def compute_output_spec(self, inputs: Any) -> Any:
        """As Keras's, of whole numbers alone."""
        check_kind(inputs, f"{self.name} (Embedding)")
        return super().compute_output_spec(inputs)
