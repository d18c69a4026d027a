"""Attention whose heads are divided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import keras
import tensorflow as tf

from hpc_train.arguments import checked_arguments
from hpc_train.distributed.tensor_parallel import entered, gathered, reduced
from hpc_train.parallel.divided import Divided
from hpc_train.parallel.dropout import Dropout


class _Heads(Divided, keras.layers.EinsumDense):  # type: ignore[misc]
    """The projection of whole activations to this rank's heads."""

    cut_along: ClassVar[dict[str, int]] = {"kernel": 1, "bias": 0}


class _FromHeads(Divided, keras.layers.EinsumDense):  # type: ignore[misc]
    """The projection of this rank's heads, added up over ranks, and the bias, which is whole."""

    cut_along: ClassVar[dict[str, int]] = {"kernel": 0}

    def call(self, inputs: Any, training: Any = None) -> Any:
        outputs = reduced(keras.ops.einsum(self.equation, inputs, self.kernel))
        return outputs if self.bias is None else keras.ops.add(outputs, self.bias)


@checked_arguments
@keras.saving.register_keras_serializable(package="hpc_train")
class MultiHeadAttention(Divided, keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """keras.layers.MultiHeadAttention whose heads are divided among the ranks of the model axis.

    Each rank computes the attention of its heads; the projections of their outputs are added up over ranks, one
    exchange forward and one backward (arXiv:1909.08053, section 3). Dropout of attention differs between heads of all
    ranks, as those of one rank differ. Names and shapes of weights are those of Keras's layer.

    Args:
        num_heads, key_dim: As those of keras.layers.MultiHeadAttention. The model axis divides `num_heads`.
        Others as those of keras.layers.MultiHeadAttention; regularizers and constraints as in ColumnDense.

    Raises:
        UserError: In a job with run.mesh, where the layer cannot be divided.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: Any = None,
        attention_axes: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, value_dim, dropout, use_bias, output_shape, attention_axes, **kwargs)
        if self.mesh is not None:
            self.check_width(num_heads, "num_heads")
            self.whole_only(activity_regularizer=self._activity_regularizer)

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        """Creates this rank's heads."""
        with _sublayers() if self.mesh is not None else nullcontext():
            super().build(query_shape, value_shape, key_shape)

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """The attention of all heads, whole on all ranks; scores, where they are asked for, of all heads, too.

        `attention_mask` may be one for each head, `[rows, heads, queries, keys]`.
        """
        given = {
            "query_mask": query_mask,
            "value_mask": value_mask,
            "key_mask": key_mask,
            "attention_mask": attention_mask,
            "return_attention_scores": return_attention_scores,
            "training": training,
            "use_causal_mask": use_causal_mask,
        }
        if self.mesh is None:
            return super().call(query, value, key, **given)
        given["attention_mask"] = self._of_own_heads(attention_mask, len(query.shape))
        key = value if key is None else key
        distinct = {id(tensor): tensor for tensor in (query, value, key)}
        inside = dict(zip(distinct, entered(*distinct.values()), strict=True))
        for own, tensor in distinct.items():
            keras.src.backend.set_keras_mask(inside[own], keras.src.backend.get_keras_mask(tensor))
        found = super().call(inside[id(query)], inside[id(value)], inside[id(key)], **given)
        if not return_attention_scores:
            return found
        outputs, scores = found
        return outputs, gathered(scores, -1 - 2 * len(self._attention_axes), self.mesh)

    def _of_own_heads(self, mask: Any, query_axes: int) -> Any:
        """The part of a mask for this rank's heads, where it has one for each head."""
        axis = -1 - 2 * len(self._attention_axes)
        by_head = mask is not None and len(mask.shape) == query_axes + len(self._attention_axes)
        if not by_head or mask.shape[axis] != self._num_heads:
            return mask
        assert self.mesh is not None
        return tf.split(tf.convert_to_tensor(mask), self.mesh.model, axis)[self.mesh.model_index]


@contextmanager
def _sublayers() -> Iterator[None]:
    """A context in which Keras's layer makes its own layers of divided ones."""
    module = keras.src.layers.attention.multi_head_attention
    before = module.EinsumDense, module.Dropout

    def projection(*args: Any, name: str, **kwargs: Any) -> Any:
        kind = _FromHeads if name == "attention_output" else _Heads
        return kind(*args, name=name, **kwargs)

    module.EinsumDense, module.Dropout = projection, Dropout
    try:
        yield
    finally:
        module.EinsumDense, module.Dropout = before
