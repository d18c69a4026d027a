"""The exchange of gradients that DistributedGradientTape and DistributedOptimizer share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpc_train.distributed.devices import in_xla
from hpc_train.errors import UserError
from hpc_train.horovod.compression import check_compression
from hpc_train.horovod.operations import reduced
from hpc_train.horovod.ranks import joined
from hpc_train.horovod.settings import Op, groups_of, op_of, predivide_factors, refuse_unused, split
from hpc_train.horovod.variables import of_tensorflow
from hpc_train.lazy import tf


class GradientReduction:
    """Reduces gradients over all ranks. Made locally; `reduce` is collective.

    Args:
        where: Who asks, in messages.
        allowed: What `op` may be. The others are the arguments of Horovod's functions.

    Attributes:
        label: What the operations' names begin with.

    Raises:
        UserError: An argument that is not allowed, or before hvd.init().
    """

    def __init__(
        self,
        where: str,
        allowed: Sequence[Op],
        op: Any,
        compression: Any,
        sparse_as_dense: bool,
        gradient_predivide_factor: float,
        groups: Any,
        num_groups: int,
        scale_local_gradients: bool,
        **unused: Any,
    ) -> None:
        refuse_unused(where, **unused)
        self.where = self.label = where
        self.size = joined(where.removeprefix("hvd.")).size
        self.op = op_of(where, op, allowed)
        self.compression, self.sparse_as_dense = check_compression(where, compression), bool(sparse_as_dense)
        self._before, self._after = predivide_factors(where, gradient_predivide_factor, self.op, self.size)
        self._groups, self._scale_local = groups_of(where, groups, num_groups), scale_local_gradients
        self._local: list[Any] = []

    def keep_local(self, variable: Any) -> None:
        """Leaves the gradients of a variable with each rank, divided by the number of ranks if that was asked for."""
        self._local.append(of_tensorflow(variable))

    def is_local(self, variable: Any) -> bool:
        """Whether `keep_local` was called with this variable."""
        return any(of_tensorflow(variable) is one for one in self._local)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks reduced; None stays None, on all ranks. In a tf.function or outside. Collective.

        Args:
            variables: That they are of, in the same order.

        Raises:
            UserError: In a function that XLA compiles, or IndexedSlices with Adasum.
        """
        results = list(gradients)
        for place, gradient in enumerate(results):
            if self.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
                results[place] = tf.convert_to_tensor(gradient)
        if self.size == 1:
            return results
        self.refuse_xla()
        shared = []
        for place, (gradient, variable) in enumerate(zip(results, variables, strict=True)):
            if gradient is None:
                continue
            if not self.is_local(variable):
                shared.append(place)
            elif self._scale_local:
                results[place] = _divided(gradient, self.size)
        if self.op is Op.Adasum and any(isinstance(results[place], tf.IndexedSlices) for place in shared):
            raise UserError(f"{self.where}: op: hvd.Adasum does not add tf.IndexedSlices; give sparse_as_dense=True")
        # The average is a sum here, divided by `_after`, so that it is the same for sparse gradients.
        op = Op.Sum if self.op is Op.Average else self.op
        for group in self._grouped(shared, variables):
            given = [results[place] for place in group]
            found = reduced(self.label, given, op, self.compression, self._before, self._after)
            for place, gradient in zip(group, found, strict=True):
                results[place] = gradient
        return results

    def refuse_xla(self) -> None:
        """UserError while a function is traced that XLA compiles."""
        if in_xla():
            raise UserError(
                f"{self.where}: jit_compile: XLA cannot compile what ranks exchange; set "
                "jit_compile=False in model.compile, or leave it out of tf.function"
            )

    def _grouped(self, places: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """The places of gradients, by group."""
        if self._groups is None:
            return [places] if places else []
        if isinstance(self._groups, int):
            return [[places[i] for i in part] for part in split(len(places), self._groups)]
        left, groups = list(places), []
        for wanted in self._groups:
            members = [of_tensorflow(one) for one in wanted]
            group = [place for place in left if any(of_tensorflow(variables[place]) is one for one in members)]
            left = [place for place in left if place not in group]
            groups += [group] if group else []
        return [*groups, *([place] for place in left)]


def _divided(gradient: Any, by: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / by, gradient.indices, gradient.dense_shape)
    return gradient / by
