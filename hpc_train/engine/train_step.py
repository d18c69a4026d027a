"""One training step as one tf.function: forward, backward, average over ranks, apply unless the numbers went bad."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from hpc_train.distributed.agreement import numbers_of, with_numbers
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.exchange import exchanging
from hpc_train.distributed.optimizer_pieces import OptimizerPieces
from hpc_train.distributed.share import averaged_over
from hpc_train.engine.graph_call import GraphCall
from hpc_train.engine.step_report import TrainStep, now_that, reporting
from hpc_train.engine.update import Update
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model.backward import loss_and_gradients, shares_scale
from hpc_train.model.loss_terms import LossPlan
from hpc_train.text import listed

log = logging.getLogger(__name__)


def make_train_step(
    model: keras.Model,
    allreduce: GradientAllreduce,
    carried: Sequence[Any],
    undo: bool,
    accumulate_steps: int = 1,
    plan: LossPlan | None = None,
    rows_apart: bool = False,
    sharded: OptimizerPieces | None = None,
) -> TrainStep:
    """Builds `step(batch, flags) -> report`. The step is collective.

    The loss and the flags are averaged over all ranks in the same allreduce as the gradients: so ranks agree on what
    to do next at no cost. The update is made where the averaged loss and gradients are finite and no rank leaves the
    batch out; the averages being the same to the bit on all ranks, so is the decision.

    Of a model that was compiled with `run_eagerly`, forward and backward pass run as Python, operation by operation.

    Args:
        carried: Variables that the forward pass may change (batch-norm averages). The changes of those that it does
            change are averaged too.
        undo: Give `carried` their old values back where the update is not made.
        accumulate_steps, plan: Pieces in which a batch is computed, and what the loss is made of; see
            loss_and_gradients.
        rows_apart: Leave the gradients of embeddings as rows, see Update.
        sharded: The pieces on which the model's optimizer is built, where it is divided among ranks.
    """
    optimizer = model.optimizer
    assert optimizer is not None, "build_model lets no model without an optimizer through"
    averages_carried = allreduce.ranks > 1
    variables = model.trainable_variables
    update = Update(optimizer, variables, allreduce, sharded, rows_apart)
    noted: list[bool] = []

    def step(batch: Any, flags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        begun = now_that([])
        values = [tf.identity(v.value) for v in carried] if averages_carried or undo else []
        with exchanging(allreduce.groups), tf.control_dependencies([begun]):
            backward = loss_and_gradients(model, batch, accumulate_steps, plan, allreduce.mean)
        changed = tuple(k for k in range(len(values)) if backward.may_assign(carried[k]))
        used = tuple(k for k, gradient in enumerate(backward.gradients) if gradient is not None)
        own = [update.given(k, backward.gradients[k]) for k in used]
        sparse = [isinstance(backward.gradients[k], tf.IndexedSlices) for k in used]
        in_rows = [
            variables[k].path
            for k, gradient, rows in zip(used, own, sparse, strict=True)
            if rows and not isinstance(gradient, tf.IndexedSlices)
        ]
        if rows_apart and in_rows:
            raise UserError(
                f"run.sparse_gradients: keras is for one rank, and for ht.parallel.ShardedEmbedding; {allreduce.ranks} "
                f"ranks have other rows of {listed(in_rows)} each. Make them such layers, or take dense"
            )
        if in_rows and not noted:
            noted.append(True)
            log.info(
                f"gradients of {listed(in_rows)} reach the optimizer whole (run.sparse_gradients: dense), so that any "
                "number of ranks trains alike; Keras alone would update the rows of each batch"
            )
        weights = [] if backward.weight is None else [tf.reshape(backward.weight, [1])]
        return finished(used, changed, own, weights, [values[k] for k in changed], backward.loss, flags, begun)

    def finish(
        used: tuple[int, ...],
        changed: tuple[int, ...],
        own: list[Any],
        weights: list[tf.Tensor],
        values: list[tf.Tensor],
        loss: tf.Tensor,
        flags: tf.Tensor,
        begun: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        changes = [carried[k].value - b for k, b in zip(changed, values, strict=True)] if averages_carried else []
        report = tf.concat([tf.reshape(tf.cast(loss, tf.float32), [1]), flags], axis=0)
        computed = now_that([*map(numbers_of, own), *changes, report])
        over = [*(averaged_over(carried[k]) for k in changed[: len(changes)]), *("world" for _ in [*weights, report])]
        averaged, (*changes, report) = update.exchanged(used, own, [*changes, *weights, report], over)
        if allreduce.ranks > 1 and plan is not None and shares_scale(model):
            averaged = [with_numbers(g, lambda n: n * tf.cast(plan.parts, n.dtype)) for g in averaged]
        if weights:
            *changes, weight = changes
            averaged = [with_numbers(g, lambda n: n / tf.cast(weight[0], n.dtype)) for g in averaged]
            report = tf.concat([report[:1] / tf.cast(weight, tf.float32), report[1:]], axis=0)
        there = now_that([*map(numbers_of, averaged), *changes, report]) if allreduce.ranks > 1 else computed

        # Else the branch keeps all gradients in memory until the update is over, which would cost what sharding saves.
        own_finite = update.finite(own, loss) if sharded is not None else None

        def apply() -> tf.Tensor:
            update.apply(used, averaged, on_all)
            for k, b, change in zip(changed, values, changes, strict=False):
                carried[k].assign(b + change)
            return tf.zeros([1])

        def leave() -> tf.Tensor:
            if undo:
                for k, b in zip(changed, values, strict=True):
                    carried[k].assign(b)
            good = update.finite(own, loss) if own_finite is None else own_finite
            return tf.reshape(tf.cast(tf.logical_not(good), tf.float32), [1])

        with tf.control_dependencies([there]):  # or the clock might be read when the update is over
            on_all = update.all_finite(averaged)
            applied = tf.logical_and(update.finite(averaged, report[0], on_all), report[-1] <= 0)
            to_blame = tf.cond(applied, apply, leave)
        times = tf.stack([begun, computed, there, now_that([to_blame])])
        return tf.concat([report, [tf.cast(applied, tf.float32)], to_blame], axis=0), times

    # Without AutoGraph, as Keras does it: it takes longer than tracing.
    finished: Callable[..., tuple[tf.Tensor, tf.Tensor]] = finish
    if model.run_eagerly:
        finished = tf.function(finish, reduce_retracing=True, autograph=False)
        return reporting(step)
    return reporting(GraphCall(tf.function(step, reduce_retracing=True, autograph=False)))
