"""One training step of a model with a train_step of its own: gradients are averaged wherever it applies some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.exchange import exchanging
from hpc_train.engine.step_report import TrainStep, now_that, reporting
from hpc_train.lazy import keras, tf
from hpc_train.model.backward import may_assign
from hpc_train.model.loss_terms import LossPlan, LossTerms
from hpc_train.model.own_steps import applied_by, logs_of, own_train_step


class _Averaging:
    """Averages gradients over ranks before an optimizer gets them.

    Attributes:
        sums: Of averaged gradients, and own_sums of this rank's: not finite where a gradient is not.
        waits: From when this rank had its gradients until it had the averages, float64 seconds.
    """

    def __init__(self, allreduce: GradientAllreduce) -> None:
        self._allreduce = allreduce
        self.sums: list[tf.Tensor] = []
        self.own_sums: list[tf.Tensor] = []
        self.waits: list[tf.Tensor] = []

    def __call__(self, optimizer: Any, gradients: list[Any], variables: list[Any], apply: Callable[..., None]) -> None:
        used = [place for place, gradient in enumerate(gradients) if gradient is not None]
        own = [tf.convert_to_tensor(gradients[place]) for place in used]
        computed = now_that(own)
        averaged, _ = self._allreduce.average(own, [])
        self.waits.append(now_that(averaged) - computed)
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):  # which leaves such steps out by itself
            self.own_sums += [tf.reduce_sum(tf.cast(g, tf.float32)) for g in own]
            self.sums += [tf.reduce_sum(tf.cast(g, tf.float32)) for g in averaged]
        for place, gradient in zip(used, averaged, strict=True):
            gradients[place] = gradient
        apply(gradients, variables)


def make_own_train_step(
    model: keras.Model,
    variables: Sequence[Any],
    allreduce: GradientAllreduce,
    carried: Sequence[Any],
    undo: bool,
    plan: LossPlan,
) -> TrainStep:
    """Builds `step(batch, flags) -> report` around the train_step of `model`. The step is collective.

    Each time that train_step applies gradients, they are averaged over all ranks first. When it has ended, its numbers
    and the flags are averaged, and what it has changed in `carried`.

    Args:
        variables: All that train_step may change: where `undo` is true, all of them get their old values back if loss
            or gradients are not finite or a rank leaves the batch out, so that of several optimizers all or none is
            applied; which takes a copy of them in each step.
        plan: How ranks share a batch.
    """
    ranks, train_step = allreduce.ranks, own_train_step(model)
    names: list[str] = []
    whose = f"train_step of {type(model).__name__}"

    def step(batch: Any, flags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        kept = [tf.identity(v.value) for v in variables] if undo else []
        values = [tf.identity(v.value) for v in carried] if ranks > 1 else []
        averaging, terms = _Averaging(allreduce), LossTerms(plan, allreduce.mean)
        begun = now_that([])
        weighed = terms.recorded() if ranks > 1 else nullcontext()
        with exchanging(allreduce.collectives), applied_by(averaging), weighed:
            logs = logs_of(train_step(batch), whose)
        names[:] = logs
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        changed = [k for k in range(len(values)) if graph is None or may_assign(graph, carried[k])]
        numbers = tf.stack(list(logs.values()))
        own_finite = tf.math.is_finite(tf.add_n([tf.reduce_sum(numbers), *averaging.own_sums]))
        loss = logs.get("loss", numbers[0])
        changes = [carried[k].value - values[k] for k in changed]
        _, (*changes, report) = allreduce.average([], [*changes, tf.concat([[loss], flags, numbers], axis=0)])
        end = 1 + flags.shape[0]
        finite = tf.math.is_finite(tf.add_n([tf.reduce_sum(report[end:]), *averaging.sums]))
        applied = tf.logical_and(finite, report[end - 1] <= 0)

        def keep() -> tf.Tensor:
            for k, change in zip(changed, changes, strict=True):
                carried[k].assign(values[k] + change)
            return tf.zeros([1])

        def leave() -> tf.Tensor:
            for variable, value in zip(variables, kept, strict=False):
                if graph is None or may_assign(graph, variable):
                    variable.assign(value)
            return tf.reshape(tf.cast(tf.logical_not(own_finite), tf.float32), [1])

        to_blame = tf.cond(applied, keep, leave)
        waited = tf.add_n(averaging.waits) if ranks > 1 else tf.zeros([], tf.float64)
        report = tf.concat([report[:end], [tf.cast(applied, tf.float32)], to_blame, report[end:]], axis=0)
        return report, tf.stack([begun, begun + waited])

    if model.run_eagerly:
        return reporting(step, names)
    return reporting(tf.function(step, reduce_retracing=True, autograph=False), names)
