"""Gradients of several batches added up on a rank, before ranks exchange them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpc_train.errors import UserError
from hpc_train.horovod.gradients import GradientReduction
from hpc_train.lazy import tf


class Accumulation:
    """Has every n-th call update, by the sum of the gradients since the last update; or by their mean. Local.

    Args:
        reduction: Whose way with sparse gradients counts.
        passes: n. mean: whether the sum is divided by it.
    """

    def __init__(self, reduction: GradientReduction, passes: int, mean: bool) -> None:
        self._reduction, self.passes, self._mean = reduction, passes, mean
        self._count: Any = None
        self._sums: list[Any] = []

    def apply(
        self,
        gradients: list[Any],
        variables: Sequence[Any],
        update: Callable[[Sequence[Any]], Any],
        skip: Callable[[], Any],
    ) -> None:
        """Calls `update` with gradients, or `skip`. In a tf.function or outside.

        Args:
            gradients: Of `variables`, in one order in all calls.

        Raises:
            UserError: A sparse gradient that is not to be made dense.
        """
        if self.passes == 1:
            update(gradients)
            return
        self._reduction.refuse_xla()
        given = [self._dense(gradient) for gradient in gradients]
        if self._count is None:
            with tf.init_scope():
                self._count = tf.Variable(0, trainable=False)
                self._sums = [
                    None if g is None else tf.Variable(tf.zeros(v.shape, g.dtype), trainable=False)
                    for g, v in zip(given, variables, strict=True)
                ]
        self._count.assign_add(1)
        for total, gradient in zip(self._sums, given, strict=True):
            if total is not None:
                total.assign_add(gradient)

        def finish() -> Any:
            factor = 1 / self.passes if self._mean else 1.0
            update([None if total is None else total * tf.cast(factor, total.dtype) for total in self._sums])
            self._count.assign(0)
            for total in self._sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            return tf.constant(True)

        def wait() -> Any:
            skip()
            return tf.constant(False)

        tf.cond(self._count >= self.passes, finish, wait)

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._reduction.sparse_as_dense:
            raise UserError(
                f"{self._reduction.where}: backward_passes_per_step: gradients of an Embedding are sparse, and cannot "
                "be added up; give sparse_as_dense=True"
            )
        return tf.convert_to_tensor(gradient)
