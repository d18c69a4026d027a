"""What a loss is made of, found before the job-dir is written: by tracing it, and by trying out a batch cut in two."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.world import World
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.backward import loss_of, shares_scale
from hpc_train.model.batch import example, fixed_rows, left_alone, specs_of
from hpc_train.model.loss_terms import LossPlan, LossTerms, Meaning
from hpc_train.model.own_steps import has_own_train_step
from hpc_train.telemetry.start_timeline import start_timeline

log = logging.getLogger(__name__)

NEAR, NEAR_GRADIENT, NEAR_IN_16_BITS = 1e-4, 3e-3, 2e-2
"""So near to each other, relative to their size, are numbers, and gradients, that should be the same."""
MOST_NUMBERS = 1 << 20
"""Of the variables whose gradients are compared."""


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
    plan = LossPlan(parts, uneven=world.first(None if static else True) is not None)
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
    kinds, same = world.each(lambda: _tried_out(model, dataset, plan, len(terms.numbers)))
    on_chief = world.broadcast(kinds)
    differing = world.sum(np.array([kind != other for kind, other in zip(kinds, on_chief, strict=True)], np.float64))
    agreed = [None if differs else kind for kind, differs in zip(on_chief, differing, strict=True)]
    all_same = world.first(None if same else True) is None
    if world.is_chief and (None in agreed or not all_same):
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
    with rng_state.unchanged(), start_timeline.within("trace"):
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
    batch = _ordered(batch)
    parts = [_rows(batch, first, stop) for first, stop in ((0, 2 * half), (0, half), (half, 2 * half))]
    variables = _some_of(model.trainable_variables)
    with left_alone(model):
        found = [_computed(model, part, plan, variables) for part in parts]
        if any(len(numbers) != count for _, numbers in found):
            return [None] * count, False
        meanings = [_meaning(*each) for each in zip(*(numbers for _, numbers in found), strict=True)]
        numbers = tuple(kind or "mean" for kind in meanings)
        shared = replace(plan, parts=2, numbers=numbers, sums=plan.sums or "sum" in numbers, along=False)
        first, second = _of_halves(model, parts[1:], shared, variables)
    return meanings, found[0][0].is_alike(first, second, 0.5)


@dataclass(frozen=True)
class _Number:
    """Of some rows a number, and its gradient: means of other rows differ by this even where all losses are alike.

    Attributes:
        gradient: float64 `[n]`, with respect to some of the model's variables.
    """

    value: float
    gradient: np.ndarray
    in_16_bits: bool

    @classmethod
    def of(cls, number: Any, tape: tf.GradientTape, variables: Sequence[Any]) -> _Number:
        """`number`, which `tape` has seen."""
        found = tape.gradient(number, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        flat = [np.ravel(tf.convert_to_tensor(g).numpy().astype(np.float64)) for g in found]
        return cls(float(number), np.concatenate(flat) if flat else np.zeros(0), number.dtype.size < 4)

    def is_alike(self, first: _Number, second: _Number, share: float) -> bool:
        """Whether it is `share` times the sum of the two."""
        value = abs((first.value + second.value) * share - self.value)
        gradient = np.linalg.norm((first.gradient + second.gradient) * share - self.gradient)
        size = np.linalg.norm(first.gradient) + np.linalg.norm(second.gradient)
        near, near_gradient = (NEAR_IN_16_BITS,) * 2 if self.in_16_bits else (NEAR, NEAR_GRADIENT)
        return bool(value <= near * (abs(first.value) + abs(second.value)) and gradient <= near_gradient * size)


def _computed(
    model: keras.Model, batch: Any, plan: LossPlan, variables: Sequence[Any]
) -> tuple[_Number, list[_Number]]:
    """The loss of a batch, and those of its terms that are one number."""
    terms = LossTerms(plan)
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(model, batch, False, terms)
    return _Number.of(loss, tape, variables), [_Number.of(number, tape, variables) for number in terms.numbers]


def _of_halves(model: keras.Model, halves: Sequence[Any], plan: LossPlan, variables: Sequence[Any]) -> list[_Number]:
    """The losses of a batch's halves, weighed as ranks weigh theirs."""
    found = []
    for half in halves:
        terms = LossTerms(plan)
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of(model, half, False, terms)
        tape.gradient(loss, [term.value for term in terms.own] + list(variables))  # notes coefficients
        found.append((loss, terms, tape))
    means = [
        tf.add_n([t.divisor for t in pair]) / 2 for pair in zip(*(terms.own for _, terms, _ in found), strict=True)
    ]
    numbers = []
    for loss, terms, tape in found:
        for term, mean in zip(terms.own, means, strict=True):
            term.weight = tf.math.divide_no_nan(term.divisor, mean)
        for term in terms.sums:
            term.weight = 2.0
        weighed = _Number.of(loss, tape, variables)
        numbers.append(replace(weighed, value=float(terms.corrected(loss))))
    return numbers


def _meaning(whole: _Number, first: _Number, second: _Number) -> Meaning | None:
    if whole.is_alike(first, second, 0.5):
        return "mean"
    return "sum" if whole.is_alike(first, second, 1.0) else None


def _some_of(variables: Sequence[Any]) -> list[Any]:
    """The smallest ones, of so many numbers that their gradients cost nothing; floating-point ones."""
    found: list[Any] = []
    room = MOST_NUMBERS
    for variable in sorted(variables, key=lambda one: int(np.prod(one.shape))):
        room -= int(np.prod(variable.shape))
        if found and room < 0:
            break
        found.append(variable.value)
    return found


def _ordered(batch: Any) -> Any:
    """The rows of a batch by how much of labels and weights is 0 or less: halves differ by what they leave out."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    key = sum((share * _not_positive(part) for share, part in ((1.0, (y, sample_weight)), (1e-3, x))), start=0.0)
    if not np.ndim(key):
        return batch
    order = tf.constant(np.argsort(key, kind="stable"))
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, order), batch)


def _not_positive(tensors: Any) -> Any:
    """The share of each row that is 0 or less, float64 `[B]`; 0 where no tensor has numbers."""
    shares = [0.0]
    for tensor in tf.nest.flatten(tensors):
        if (
            isinstance(tensor, tf.Tensor)
            and tensor.shape.rank
            and (tensor.dtype.is_floating or tensor.dtype.is_integer)
        ):
            shares.append(np.mean(np.reshape(tensor.numpy() <= 0, [len(tensor), -1]), axis=1))
    return sum(shares)


def _rows(batch: Any, first: int, stop: int) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor[first:stop], batch)
