"""What a loss is made of, found before the job-dir is written: by tracing it, and by trying out a batch cut in two."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpc_train.distributed.world import World
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.backward import loss_of
from hpc_train.model.batch import example, fixed_rows, specs_of
from hpc_train.model.loss_terms import LossPlan, LossTerms, Meaning
from hpc_train.model.own_steps import has_own_train_step

log = logging.getLogger(__name__)

NEAR, NEAR_IN_16_BITS = 1e-4, 2e-2
"""So near to each other, relative to their size, are numbers that should be the same."""


def plan_loss(
    world: World, model: keras.Model, dataset: tf.data.Dataset, parts: int, pieces: int, name: str
) -> LossPlan:
    """What the loss of `model` is made of, the same on all ranks. Collective.

    Args:
        dataset: Batches like those that it is trained on; one is read where a term is one number for all rows.
        parts: How many ranks share a batch. pieces: in how many pieces a rank computes it.
        name: What to call the model.
    """
    if parts == 1 and pieces == 1:
        return LossPlan()
    static = all(spec.shape.is_fully_defined() for spec in specs_of(dataset))
    plan = LossPlan(parts, uneven=not all(world.all_gather(static)))
    if has_own_train_step(model):
        return plan
    terms = world.each(lambda: _traced(model, dataset, plan))
    only = len(terms.own) == 1 and not terms.sums and not terms.fixed and not terms.numbers
    plan = replace(
        plan,
        divisors=len(terms.own),
        sums=bool(terms.sums),
        # What compute_loss of one's own does beside is not known; a loss scale leaves no room for another factor.
        along=only
        and getattr(model.compute_loss, "__func__", None) is keras.Model.compute_loss
        and not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer),
    )
    if not terms.numbers:
        return plan
    found = world.all_gather(world.each(lambda: _meanings(model, dataset, len(terms.numbers))))
    agreed = [kinds[0] if len(set(kinds)) == 1 else None for kinds in zip(*found, strict=True)]
    if None in agreed and world.is_chief:
        log.warning(
            f"{name}: a loss that is one number for a batch (that of a loss function, or of add_loss) is neither a "
            f"mean nor a sum over rows: each of {parts if parts > 1 else pieces} {'ranks' if parts > 1 else 'pieces'} "
            "computes it of its own rows, and their mean counts; give one number a row, or compare the rows of all "
            "ranks by ht.all_gather"
        )
    return replace(plan, sums=plan.sums or "sum" in agreed, numbers=tuple(kind or "mean" for kind in agreed))


def _traced(model: keras.Model, dataset: tf.data.Dataset, plan: LossPlan) -> LossTerms:
    terms = LossTerms(plan)
    with rng_state.unchanged():
        tf.function(lambda batch: loss_of(model, batch, True, terms), autograph=False).get_concrete_function(
            tf.nest.map_structure(tf.TensorSpec.from_tensor, example(dataset, model))
        )
    return terms


def _meanings(model: keras.Model, dataset: tf.data.Dataset, count: int) -> Sequence[Meaning | None]:
    """Of each term that is one number: what it is over rows; None where that cannot be known."""
    unknown: list[Meaning | None] = [None] * count
    batch = next(iter(dataset.take(1)), None)
    rows = 0 if batch is None else int(tf.nest.flatten(batch)[0].shape[0])
    if rows < 2 or fixed_rows(model) is not None:
        return unknown
    half = rows // 2
    ends = (0, rows), (0, half), (half, rows)
    kept = [(variable, np.array(variable.numpy())) for variable in model.non_trainable_variables]
    with rng_state.unchanged():
        found = [_numbers(model, _rows(batch, a, b)) for a, b in ends]
    for variable, value in kept:
        variable.assign(value)
    if any(len(numbers) != count for numbers in found):
        return unknown
    return [_meaning(whole, a, b, half / rows) for whole, a, b in zip(*found, strict=True)]


def _numbers(model: keras.Model, batch: Any) -> list[Any]:
    terms = LossTerms(LossPlan())
    loss_of(model, batch, False, terms)
    return terms.numbers


def _meaning(whole: Any, first: Any, second: Any, share: float) -> Meaning | None:
    near = NEAR if whole.dtype in (tf.float32, tf.float64) else NEAR_IN_16_BITS
    whole, first, second = (float(number) for number in (whole, first, second))
    error = near * (abs(first) + abs(second))
    if abs(share * first + (1 - share) * second - whole) <= error:
        return "mean"
    return "sum" if abs(first + second - whole) <= error else None


def _rows(batch: Any, first: int, stop: int) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor[first:stop], batch)
