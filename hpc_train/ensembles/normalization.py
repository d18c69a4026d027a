"""What batch normalization keeps of the rows that it has seen, computed anew over the training rows. Local.

A layer's moving averages become the mean and the variance of all that comes to it in one pass over the rows, with the
model in training: pooled over batches by how many values each has, so that the variance has also what the batches'
means differ by, and a shorter last batch counts less. `torch.optim.swa_utils.update_bn` averages the variances of
batches, each alike, which leaves that out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from hpc_train.lazy import keras, tf


class PooledMoments:
    """Mean and variance of what a layer normalizes, over many calls; float64.

    Attributes:
        layer: It has `moving_mean`, `moving_variance` and `momentum` as Keras's BatchNormalization does.
    """

    def __init__(self, layer: keras.layers.Layer) -> None:
        self.layer = layer
        shape = layer.moving_mean.shape
        self._count, self._mean, self._squares = (
            tf.Variable(tf.zeros(s, tf.float64), trainable=False) for s in ((), shape, shape)
        )

    @property
    def has_seen_rows(self) -> bool:
        return bool(self._count.numpy() > 0)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which each call of the layer in training is taken in."""
        layer, call, momentum = self.layer, self.layer.call, self.layer.momentum
        signature = inspect.signature(call)

        def watched(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            if given.get("training") and layer.trainable:
                self._add(next(iter(given.values())), given.get("mask"))
            return outputs

        vars(layer)["call"], layer.momentum = watched, 0.0  # so that its averages are those of the call
        try:
            yield
        finally:
            del vars(layer)["call"]
            layer.momentum = momentum

    def _add(self, inputs: Any, mask: Any) -> None:
        mean, variance = (tf.cast(v.value, tf.float64) for v in (self.layer.moving_mean, self.layer.moving_variance))
        each = tf.size(inputs, tf.int64) // tf.size(mean, tf.int64)
        added = tf.cast(each if mask is None else tf.math.count_nonzero(mask), tf.float64)
        share = tf.math.divide_no_nan(added, self._count + added)
        apart = mean - self._mean
        self._squares.assign_add(variance * added + apart**2 * self._count * share)
        self._mean.assign_add(apart * share)
        self._count.assign_add(added)

    def assign(self) -> None:
        """Gives them to the layer."""
        self.layer.moving_mean.assign(self._mean)
        self.layer.moving_variance.assign(self._squares / self._count)


def normalizing_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers that keep a mean and a variance, wherever they are in `model`."""

    def keeps(layer: Any, name: str) -> bool:
        return isinstance(getattr(layer, name, None), keras.Variable)

    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "momentum")]
    return [layer for layer in layers if keeps(layer, "moving_mean") and keeps(layer, "moving_variance")]


def renew(model: keras.Model, layers: Sequence[Any], batches: Iterable[Any], spec: Any) -> tuple[int, list[Any]]:
    """Gives `layers` the moments of what comes to them in one pass; how many rows that were, and which got them.

    Those of layers that are frozen, or that the model calls otherwise than in training, stay as they are. What else
    the pass changes (random states, other averages) is left so.

    Args:
        batches: Features, or tuples that begin with them. spec: Of the features.
    """
    pools = [PooledMoments(layer) for layer in layers]

    @tf.function(input_signature=[spec], autograph=False)  # type: ignore[untyped-decorator]
    def see(features: Any) -> None:
        model(features, training=True)

    rows = 0
    with ExitStack() as stack:
        for pool in pools:
            stack.enter_context(pool.watching())
        for batch in batches:
            features = batch[0] if isinstance(batch, tuple) else batch
            see(features)
            rows += int(tf.nest.flatten(features)[0].shape[0])
    seen = [pool for pool in pools if pool.has_seen_rows]
    for pool in seen:
        pool.assign()
    return rows, [pool.layer for pool in seen]
