"""What a loss is made of, found before the job-dir is written: by tracing it, and by trying out a batch cut in two."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpc_train.config.specs import RunConfig
from hpc_train.distributed.world import World
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.backward import loss_of, shares_scale
from hpc_train.model.batch import example, fixed_rows, left_alone, specs_of
from hpc_train.model.loss_terms import LossPlan, LossTerms, Meaning
from hpc_train.model.own_steps import has_own_train_step

log = logging.getLogger(__name__)

NEAR, NEAR_IN_16_BITS = 1e-4, 2e-2
"""So near to each other, relative to their size, are numbers that should be the same."""


def plan_loss(
    world: World, model: keras.Model, dataset: tf.data.Dataset, parts: int, config: RunConfig, name: str
) -> LossPlan:
    """What the loss of `model` is made of, the same on all ranks. Collective.

    Args:
        dataset: Batches like those that it is trained on; one is read where a term is one number for all rows.
        parts: How many ranks share a batch. config: how they compute it.
        name: What to call the model.
    """
    pieces = config.accumulate_steps
    if parts == 1 and pieces == 1:
        return LossPlan()
    static = all(spec.shape.is_fully_defined() for spec in specs_of(dataset))
    plan = LossPlan(parts, uneven=not all(world.all_gather(static)))
    if has_own_train_step(model):
        return plan
    own = getattr(model.compute_loss, "__func__", None) is not keras.Model.compute_loss
    terms = world.each(lambda: _terms(model, dataset, plan))
    only = len(terms.own) == 1 and not terms.sums and not terms.fixed and not terms.numbers
    plan = replace(
        plan,
        divisors=len(terms.own),
        sums=bool(terms.sums),
        # What compute_loss of one's own does beside is not known; float16 has no room for another factor.
        along=only and not own and not shares_scale(model) and config.compression != "fp16",
    )
    if not terms.numbers and not own:
        return plan
    found = world.all_gather(world.each(lambda: _tried_out(model, dataset, plan, len(terms.numbers))))
    agreed = [kinds[0] if len(set(kinds)) == 1 else None for kinds in zip(*(own for own, _ in found), strict=True)]
    if world.is_chief and (None in agreed or not all(same for _, same in found)):
        whose = f"compute_loss of {type(model).__name__}" if own else "a loss of one number for a batch"
        where = f"{parts} ranks" if parts > 1 else f"{pieces} pieces"
        log.warning(
            f"{name}: {whose} is neither a mean nor a sum over rows: each of {where} computes it of its own rows, and "
            "the mean of that counts; give one number a row (with a mask or sample_weight where not all count), or "
            "bring the rows of all ranks together by ht.all_gather"
        )
    return replace(plan, sums=plan.sums or "sum" in agreed, numbers=tuple(kind or "mean" for kind in agreed))


def _terms(model: keras.Model, dataset: tf.data.Dataset, plan: LossPlan) -> LossTerms:
    """What the loss of a batch is made of, as it is when it is trained on."""
    terms, batch = LossTerms(plan), example(dataset, model)
    if model.run_eagerly:
        with left_alone(model):
            loss_of(model, batch, True, terms)
        return terms
    specs = tf.nest.map_structure(tf.type_spec_from_value, batch)
    with rng_state.unchanged():
        tf.function(lambda batch: loss_of(model, batch, True, terms), autograph=False).get_concrete_function(specs)
    return terms


def _tried_out(
    model: keras.Model, dataset: tf.data.Dataset, plan: LossPlan, count: int
) -> tuple[list[Meaning | None], bool]:
    """Of each term that is one number what it is over rows; whether the loss of a batch comes of those of its halves.

    None, and False, where that cannot be known.
    """
    batch = next(iter(dataset.take(1)), None)
    half = 0 if batch is None else int(tf.nest.flatten(batch)[0].shape[0]) // 2
    if half == 0 or fixed_rows(model) is not None:
        return [None] * count, False
    parts = [_rows(batch, first, stop) for first, stop in ((0, 2 * half), (0, half), (half, 2 * half))]
    with left_alone(model):
        found = [_computed(model, part, plan) for part in parts]
        if any(len(terms.numbers) != count for _, terms in found):
            return [None] * count, False
        meanings = [_meaning(*each) for each in zip(*(terms.numbers for _, terms in found), strict=True)]
        numbers = tuple(kind or "mean" for kind in meanings)
        shared = replace(plan, parts=2, numbers=numbers, sums=plan.sums or "sum" in numbers, along=False)
        whole, together = found[0][0], _of_halves(model, parts[1:], shared)
    return meanings, bool(abs(float(whole) - together) <= _near(whole) * (abs(float(whole)) + abs(together)))


def _computed(model: keras.Model, batch: Any, plan: LossPlan) -> tuple[Any, LossTerms]:
    terms = LossTerms(plan)
    return loss_of(model, batch, False, terms), terms


def _of_halves(model: keras.Model, halves: Sequence[Any], plan: LossPlan) -> float:
    """The loss of a batch by those of its halves, weighed as ranks weigh theirs."""
    found = []
    for half in halves:
        terms = LossTerms(plan)
        with tf.GradientTape() as tape:
            loss = loss_of(model, half, False, terms)
        tape.gradient(loss, [term.value for term in terms.own] + model.trainable_variables)  # notes coefficients
        found.append((loss, terms))
    means = [tf.add_n([t.divisor for t in pair]) / 2 for pair in zip(*(terms.own for _, terms in found), strict=True)]
    for _, terms in found:
        for term, mean in zip(terms.own, means, strict=True):
            term.weight = tf.math.divide_no_nan(term.divisor, mean)
        for term in terms.sums:
            term.weight = 2.0
    return sum(float(terms.corrected(loss)) for loss, terms in found) / 2


def _near(number: Any) -> float:
    return NEAR if number.dtype in (tf.float32, tf.float64) else NEAR_IN_16_BITS


def _meaning(whole: Any, first: Any, second: Any) -> Meaning | None:
    error = _near(whole) * (abs(float(first)) + abs(float(second)))
    if abs((float(first) + float(second)) / 2 - float(whole)) <= error:
        return "mean"
    return "sum" if abs(float(first) + float(second) - float(whole)) <= error else None


def _rows(batch: Any, first: int, stop: int) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor[first:stop], batch)
