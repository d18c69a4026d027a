"""Gradients of several batches added up on a rank, before ranks exchange them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpc_train.errors import UserError
from hpc_train.horovod.gradients import GradientReduction
from hpc_train.horovod.variables import of_tensorflow
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
        self._variables: list[Any] = []
        self._sums: list[Any] = []
        self._seen: set[int] = set()

    def apply(
        self,
        gradients: list[Any],
        variables: Sequence[Any],
        update: Callable[[Sequence[Any]], Any],
        skip: Callable[[], Any],
    ) -> None:
        """Calls `update` with gradients, or `skip`. In a tf.function or outside.

        Args:
            gradients: Of `variables`, None where one has none; a variable that never had one gets none.
            variables: The same in all calls, in any order.

        Raises:
            UserError: A sparse gradient that is not to be made dense; or other variables than in the first call.
        """
        if self.passes == 1:
            update(gradients)
            return
        self._reduction.refuse_xla()
        given = [self._dense(gradient) for gradient in gradients]
        if self._count is None:
            with tf.init_scope():
                self._count = tf.Variable(0, trainable=False)
                self._variables = [of_tensorflow(variable) for variable in variables]
                self._sums = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in self._variables]
        places = self._places(variables)
        self._count.assign_add(1)
        for place, gradient in zip(places, given, strict=True):
            if gradient is not None:
                self._seen.add(place)
                self._sums[place].assign_add(tf.cast(gradient, self._sums[place].dtype))

        def finish() -> Any:
            factor = 1 / self.passes if self._mean else 1.0
            sums = [self._sums[place] if place in self._seen else None for place in places]
            update([None if total is None else total * tf.cast(factor, total.dtype) for total in sums])
            self._count.assign(0)
            for total in sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            return tf.constant(True)

        def wait() -> Any:
            skip()
            return tf.constant(False)

        tf.cond(self._count >= self.passes, finish, wait)

    def _places(self, variables: Sequence[Any]) -> list[int]:
        """Where the sums of `variables` are."""
        known = {id(variable): place for place, variable in enumerate(self._variables)}
        places = [known.get(id(of_tensorflow(variable))) for variable in variables]
        found = [place for place in places if place is not None]
        if sorted(found) != list(range(len(self._variables))) or len(found) != len(places):
            raise UserError(
                f"{self._reduction.where}: backward_passes_per_step: gradients of other variables than before; give "
                "those of all variables each time, or each list of variables an optimizer of its own"
            )
        return found

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._reduction.sparse_as_dense:
            raise UserError(
                f"{self._reduction.where}: backward_passes_per_step: gradients of an Embedding are sparse, and cannot "
                "be added up; give sparse_as_dense=True"
            )
        return tf.convert_to_tensor(gradient)
