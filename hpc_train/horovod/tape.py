"""DistributedGradientTape: a gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpc_train.errors import UserError
from hpc_train.horovod.compression import Compression
from hpc_train.horovod.gradients import GradientReduction
from hpc_train.horovod.operations import as_written
from hpc_train.horovod.settings import OF_TAPES, Op
from hpc_train.horovod.variables import of_tensorflow
from hpc_train.lazy import keras, tf

_WHERE = "hvd.DistributedGradientTape"


class DistributedGradientTape:
    """A tf.GradientTape whose `gradient` is reduced over all ranks; all its other methods are those of the tape.

    Args:
        gradtape: The tape, before, while or after it records.
        compression: How gradients are sent (Compression).
        sparse_as_dense: Whether tf.IndexedSlices are made dense first; else all ranks' slices are gathered.
        op: Average (the default), Sum or Adasum.
        gradient_predivide_factor: With Average, gradients are divided by it before the sum, and by ranks / it after.
        groups: How many groups gradients are sent in, or a list of lists of variables, one for each group, the
            others alone; None: one group. num_groups: that of earlier versions.
        scale_local_gradients: Whether gradients of `register_local_source` are divided by the number of ranks.
        device_dense, device_sparse, process_set: Not offered.

    Raises:
        UserError: An argument that is not allowed, or before hvd.init().
    """

    @as_written
    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: Op | None = Op.Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: Any = None,
        scale_local_gradients: bool = True,
    ) -> None:
        if not isinstance(gradtape, tf.GradientTape):
            raise UserError(f"{_WHERE}: gradtape: {type(gradtape).__name__} is not allowed; allowed: a tf.GradientTape")
        self._tape = gradtape
        self._reduction = GradientReduction(
            _WHERE,
            OF_TAPES,
            op,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            groups,
            num_groups,
            scale_local_gradients,
            device_dense=device_dense,
            device_sparse=device_sparse,
            process_set=process_set,
        )

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_tape"], name)

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradients of a variable with each rank."""
        self._reduction.keep_local(source)

    @as_written
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = None,
    ) -> Any:
        """The gradients of `target` by `sources`, reduced over all ranks. In a tf.function or outside. Collective.

        Args:
            sources: A variable of Keras or TensorFlow, a tensor, or any structure of them, the same on all ranks.
            use_generic_names: Makes no difference: operations are named by their order.

        Raises:
            UserError: In a function that XLA compiles.
        """
        flat = [of_tensorflow(source) for source in tf.nest.flatten(sources)]
        none = tf.UnconnectedGradients.NONE if unconnected_gradients is None else unconnected_gradients
        gradients = self._tape.gradient(target, flat, output_gradients, none)
        return tf.nest.pack_sequence_as(sources, self._reduction.reduce(gradients, flat))

    @as_written
    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """`gradient`, as pairs of source and gradient: first those that stay with each rank, then the others."""
        found = self.gradient(target, list(sources), output_gradients)
        pairs: tuple[list[Any], list[Any]] = [], []
        for source, gradient in zip(sources, found, strict=True):
            pairs[not self._reduction.is_local(source)].append((source, gradient))
        return pairs


def PartialDistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape, *args: Any, local_layers: Any = None, **kwargs: Any
) -> DistributedGradientTape:
    """A DistributedGradientTape that leaves the gradients of some layers with each rank.

    Args:
        local_layers: A layer, or several.
    """
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    layers: Iterable[Any] = [local_layers] if isinstance(local_layers, keras.layers.Layer) else local_layers or []
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise UserError(f"{_WHERE}: local_layers: {type(layer).__name__} is not allowed; allowed: layers of Keras")
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
