"""Loss and gradients of a batch, computed at once or in pieces, one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model.loss_terms import Exchange, LossPlan, LossTerms

LEAST_WEIGHT = 1e-20
"""Of a part of a batch in which nothing is valid: regularisation, which it computes all the same, is kept by it."""


@dataclass(frozen=True)
class Backward:
    """Loss and gradients of a batch, inside a tf.function.

    Attributes:
        loss: Mean over the rows, with loss weights and regularisation.
        gradients: Of each trainable variable, of the loss as the optimizer scales it; None where it has none. The
            mean over ranks is that of their common batch, once it is divided by the mean of `weight`; where
            `shares_scale`, their sum is.
        graph: In which the model was called; None where it runs eagerly.
        weight: By which loss and gradients are multiplied; None: by nothing.
    """

    loss: tf.Tensor
    gradients: list[Any]
    graph: Any
    weight: tf.Tensor | None = None

    def may_assign(self, variable: Any) -> bool:
        """Whether the forward pass does more to `variable` than read it."""
        return self.graph is None or may_assign(self.graph, variable)


def may_assign(graph: Any, variable: Any) -> bool:
    """Whether the function that has this graph does more to a Keras variable than read it."""
    return bool(uses_of(graph, variable) - {"ReadVariableOp"})


def uses_of(graph: Any, variable: Any) -> set[str]:
    """The types of the operations by which the function that has this graph uses a Keras variable."""
    handle = variable.value.handle
    users = [inner.consumers() for outer, inner in graph.captures if outer is handle]
    return {operation.type for operations in users for operation in operations}


def loss_and_gradients(
    model: keras.Model,
    batch: Any,
    pieces: int = 1,
    plan: LossPlan | None = None,
    exchange: Exchange | None = None,
) -> Backward:
    """The loss of a batch and its gradients. Called inside a tf.function, after everything that reads state before.

    Where the loss divides by numbers that depend on the rows (see LossTerms), ranks and pieces count by these numbers:
    one such number goes along with the gradients as their weight; several are exchanged first.

    Args:
        pieces: The batch is cut into so many, each of ceil(rows / pieces) rows but the last ones, which may have fewer
            or none. They are computed one after the other, so that only one's activations are in memory. All gradients
            are dense then.
        plan: None: the batch is this rank's alone, and computed at once.
        exchange: For the numbers that travel apart from gradients; may be None where the batch is this rank's alone.

    Raises:
        UserError: The loss has other terms in a piece than in a whole batch.
    """
    plan = plan or LossPlan()
    if pieces > 1:
        return _Pieces(model, batch, pieces, plan).computed(exchange)
    variables = model.trainable_variables
    if plan.parts == 1:
        loss, scaled, tape = _forward(model, batch)
        return Backward(loss, tape.gradient(scaled, variables), _graph())
    terms = LossTerms(plan)
    loss, scaled, tape = _forward(model, batch, terms)
    for term in terms.sums:
        term.weight = float(plan.parts)
    if plan.along:
        weight = tf.maximum(terms.own[0].divisor, LEAST_WEIGHT)
        gradients = tape.gradient(scaled, variables, output_gradients=tf.cast(weight, scaled.dtype))
        return Backward(loss * tf.cast(weight, loss.dtype), gradients, _graph(), weight)
    if terms.own:
        divisors = tf.stack([term.divisor for term in terms.own])
        for term, mean in zip(terms.own, tf.unstack(_mean(divisors, plan, exchange)), strict=True):
            term.weight = tf.math.divide_no_nan(term.divisor, mean)
    gradients = tape.gradient(scaled, variables)
    return Backward(terms.corrected(loss, _scale_of(model, plan)), gradients, _graph())


class _Pieces:
    """A batch that is computed piece by piece."""

    def __init__(self, model: keras.Model, batch: Any, pieces: int, plan: LossPlan) -> None:
        self._model, self._batch, self._plan = model, batch, plan
        first = tf.nest.flatten(batch)[0]
        self._rows = tf.shape(first)[0]
        self._most = -(-self._rows // pieces)
        self._whole = first.shape[0] // pieces if first.shape[0] and first.shape[0] % pieces == 0 else None
        self._along = plan.along
        self._apart = plan.divisors > 0 and not self._along
        self._graph: Any = None
        self._missing = [True for _ in model.trainable_variables]

    def computed(self, exchange: Exchange | None) -> Backward:
        """Loss and gradients; see loss_and_gradients."""
        variables, plan = self._model.trainable_variables, self._plan
        exact = tf.float64 if any(variable.dtype == "float64" for variable in variables) else tf.float32
        sets = 1 + (plan.divisors if self._apart else 0)
        gradients = [[tf.zeros(variable.shape, variable.dtype) for variable in variables] for _ in range(sets)]
        start = (tf.constant(0), tf.zeros([sets], exact), tf.zeros([sets], exact), gradients)
        _, losses, weights, gradients = tf.while_loop(
            lambda at, *_: at < self._rows, self._add_piece, start, parallel_iterations=1
        )
        if not self._apart:
            return Backward(losses[0], self._present(gradients[0]), self._graph, weights[0] if self._along else None)
        means = _mean(weights[1:], plan, exchange)
        shares = [tf.math.divide_no_nan(tf.ones([], exact), mean) for mean in tf.unstack(means)]
        whole = [
            tf.add_n([own[0], *(tf.cast(share, g.dtype) * g for share, g in zip(shares, own[1:], strict=True))])
            for own in zip(*gradients, strict=True)
        ]
        return Backward(
            tf.reduce_sum(losses * tf.stack([tf.ones([], exact), *shares])), self._present(whole), self._graph
        )

    def _present(self, gradients: list[Any]) -> list[Any]:
        return [None if missing else g for missing, g in zip(self._missing, gradients, strict=True)]

    def _add_piece(self, start: Any, losses: Any, weights: Any, totals: list[list[Any]]) -> tuple[Any, ...]:
        """Adds a piece: terms that share their weight first, then each term that divides by a number of its own."""
        model, plan, variables = self._model, self._plan, self._model.trainable_variables
        stop = start + self._whole if self._whole else tf.minimum(start + self._most, self._rows)
        piece = tf.nest.map_structure(lambda tensor: tensor[start:stop], self._batch)
        if self._whole:
            for part, tensor in zip(tf.nest.flatten(piece), tf.nest.flatten(self._batch), strict=True):
                if isinstance(part, tf.Tensor):  # and not rows of different lengths
                    part.set_shape([self._whole, *tensor.shape[1:]])
        terms = LossTerms(plan)
        loss, scaled, tape = _forward(model, piece, terms, persistent=self._apart)
        if len(terms.own) != plan.divisors or bool(terms.sums) != plan.sums:
            raise UserError(
                "run.accumulate_steps: the loss has other terms in one piece of a batch than in a whole one; leave "
                "accumulate_steps out"
            )
        self._graph = _graph()
        share = tf.cast(stop - start, losses.dtype) / tf.cast(self._rows, losses.dtype)
        for term in terms.sums:
            term.weight = plan.parts / share
        weight = tf.cast(tf.maximum(terms.own[0].divisor, LEAST_WEIGHT), losses.dtype) if self._along else share
        for term in terms.own if self._apart else ():
            term.weight = 0.0
        found = [tape.gradient(scaled, variables, output_gradients=tf.cast(weight, scaled.dtype))]
        scale = _scale_of(model, plan)
        own_weights, own_losses = [weight], []
        for term in (*terms.own, *terms.sums):
            if term.coefficient is not None:
                term.coefficient = term.coefficient / tf.cast(weight, term.coefficient.dtype)
        own_losses.append(tf.cast(terms.corrected(loss, scale), losses.dtype) * weight)
        for term in terms.own if self._apart else ():
            by = tf.zeros_like(term.value) if term.coefficient is None else term.coefficient
            divisor = tf.cast(term.divisor, losses.dtype)
            found.append(tape.gradient(term.value, variables, output_gradients=by * tf.cast(divisor, by.dtype)))
            own_weights.append(divisor)
            own_losses.append(tf.cast(by * term.value, losses.dtype) / tf.cast(scale, losses.dtype) * divisor)
        self._missing = [all(g is None for g in of_variable) for of_variable in zip(*found, strict=True)]
        totals = [
            [
                sum_ if g is None else sum_ + tf.cast(tf.convert_to_tensor(g), sum_.dtype)
                for sum_, g in zip(*own, strict=True)
            ]
            for own in zip(totals, found, strict=True)
        ]
        return stop, losses + tf.stack(own_losses), weights + tf.stack(own_weights), totals


def loss_of(model: keras.Model, batch: Any, training: bool, terms: LossTerms | None = None) -> tf.Tensor:
    """The loss of a batch as Keras's train_step and test_step compute it."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    if terms:
        terms.rows = tf.nest.flatten(x)[0].shape[0]
    with terms.recorded() if terms else nullcontext():
        predicted = model(x, training=training) if _takes(model.call, "training") else model(x)
        extra = {"training": training} if _takes(model.compute_loss, "training") else {}
        return model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, **extra)


def _forward(
    model: keras.Model, batch: Any, terms: LossTerms | None = None, persistent: bool = False
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """The loss of a batch, the same as the optimizer scales it, and the tape that saw both."""
    with tf.GradientTape(persistent=persistent) as tape:
        loss = loss_of(model, batch, True, terms)
        scaled = model.optimizer.scale_loss(loss)
        if terms and shares_scale(model):
            scaled /= terms.plan.parts
    return loss, scaled, tape


def shares_scale(model: keras.Model) -> bool:
    """Whether gradients of each of N ranks are of 1/N of the loss, so that a loss scale fits them as those of all."""
    return isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def _mean(divisors: Any, plan: LossPlan, exchange: Exchange | None) -> Any:
    if plan.parts == 1:
        return divisors
    assert exchange is not None, "ranks that share a batch exchange what its loss divides by"
    return exchange(divisors)


def _scale_of(model: keras.Model, plan: LossPlan) -> Any:
    scale = model.optimizer.scale_loss(tf.ones([]))
    return scale / plan.parts if shares_scale(model) else scale


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def check_accumulation(batch_size: int, pieces: int) -> None:
    """UserError where a batch of `batch_size` rows cannot be cut into so many pieces."""
    if pieces > batch_size:
        raise UserError(
            f"run.accumulate_steps: a batch of {batch_size} rows (data.train.batch_size) cannot be cut into {pieces} "
            f"pieces; allowed are 1 to {batch_size}. batch_size is what a rank gives to one step in all, not a piece"
        )


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)
