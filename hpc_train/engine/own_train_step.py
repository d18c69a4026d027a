"""One training step of a model with a train_step of its own: the gradients that it computes are averaged over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from hpc_train.distributed.agreement import all_finite, numbers_of, sum_of
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.exchange import exchanging
from hpc_train.distributed.optimizer_pieces import OptimizerPieces
from hpc_train.distributed.share import averaged_over
from hpc_train.engine.graph_call import GraphCall
from hpc_train.engine.rank_dependence import RankDependence
from hpc_train.engine.step_report import TrainStep, now_that, reporting
from hpc_train.engine.update import Update
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.backward import may_assign
from hpc_train.model.loss_terms import LossPlan, LossTerms
from hpc_train.model.model_state import ModelState
from hpc_train.model.own_steps import applied_by, logs_of, own_train_step
from hpc_train.text import listed


class _Averaging:
    """Averages gradients over ranks where a train_step computes them, or else where it applies them.

    Where it computes them, so that all that it does with them (clipping, a step aside and back) it does alike on all
    ranks, as one process with all rows would.

    Attributes:
        own, averaged: Sums of this rank's gradients and of the averages, `[]`: not finite where a gradient is not.
        waited: From when this rank had gradients until it had averages, float64 seconds. Variables, since train_step
            may compute gradients inside functions and branches of its own.
    """

    def __init__(self, allreduce: GradientAllreduce, state: ModelState, whose: str) -> None:
        self._allreduce, self._whose = allreduce, whose
        self._variables = {key: v for v in state.variables for key in (id(v), id(v.value))}
        self._may_overflow = any(
            isinstance(optimizer, keras.optimizers.LossScaleOptimizer) for optimizer, _ in state.updates.optimizers
        )
        pieces = state.updates.pieces or [None] * len(state.updates.optimizers)
        self._updates = {
            id(optimizer): (Update(optimizer, variables, allreduce, own), _numbers_of(variables, own))
            for (optimizer, variables), own in zip(state.updates.optimizers, pieces, strict=True)
        }
        self._updating = dict[int, list[tuple[Update, int]]]()
        for update, numbers in self._updates.values():
            for key, number in numbers.items():
                self._updating.setdefault(key, []).append((update, number))
        self.apart = any(averaged_over(variable) != "world" for variable in state.variables)
        self.own, self.averaged = (tf.Variable(0.0, trainable=False) for _ in range(2))
        self.waited = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        self._dependence: RankDependence | None = None

    @contextmanager
    def during(self, dependence: RankDependence | None) -> Iterator[None]:
        """A context in which train_step is called."""
        self._dependence = dependence
        self.own.assign(0.0)
        self.averaged.assign(0.0)
        self.waited.assign(0.0)
        tape = tf.GradientTape
        gradient = tape.gradient

        def averaged_gradient(its: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            return self._of_tape(sources, gradient(its, target, sources, *args, **kwargs))

        tape.gradient = averaged_gradient
        try:
            with applied_by(self._applied):
                yield
        finally:
            tape.gradient = gradient

    def _of_tape(self, sources: Any, gradients: Any) -> Any:
        """Gradients as a tape has computed them; those of the model's variables averaged."""
        flat, found = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        places = [k for k, source in enumerate(flat) if id(source) in self._variables and found[k] is not None]
        variables = [self._variables[id(flat[k])] for k in places]
        for place, mean in zip(places, self._average([found[k] for k in places], variables), strict=True):
            found[place] = mean
        return tf.nest.pack_sequence_as(gradients, found) if places else gradients

    def _applied(self, optimizer: Any, gradients: list[Any], variables: list[Any], apply: Callable[..., None]) -> None:
        """Gradients that train_step has got in another way are averaged before they are applied."""
        own = [k for k, g in enumerate(gradients) if g is not None and self._depends(g, variables[k])]
        means = self._average([gradients[k] for k in own], [variables[k] for k in own])
        for place, mean in zip(own, means, strict=True):
            gradients[place] = mean
        update, numbers = self._updates.get(id(optimizer), (None, {}))
        if update is None or not update.apart:
            return apply(gradients, variables)
        given = [(v, g) for v, g in zip(variables, gradients, strict=True) if g is not None]
        used = [numbers[id(v)] for v, _ in given]
        parts = update.own(used, [g for _, g in given])
        alike = self._dependence.averaged if self._dependence else None
        update.apply(used, parts, update.all_finite(parts), apply, alike)

    def _depends(self, gradient: Any, variable: Any) -> bool:
        """Whether a gradient that train_step applies is still this rank's; UserError: of parts of other variables."""
        if self._dependence is None:
            return True
        tensors = _tensors(gradient)
        others = set().union(*map(self._dependence.parts, tensors)) - {variable.path}
        if others:
            raise UserError(
                f"{self._whose}: what it applies to {variable.path} is computed from gradients of "
                f"{listed(sorted(others))} (ht.parallel.ShardedEmbedding), of which this rank has its own rows alone, "
                "as by tf.clip_by_global_norm; give the optimizer clipnorm or global_clipnorm instead, which count the "
                "rows of all ranks"
            )
        return any(map(self._dependence.of, tensors))

    def _average(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        own = [self._given(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)]
        if not own:
            return []
        over = [averaged_over(variable) for variable in variables]
        computed = now_that([*map(numbers_of, own)])
        averaged, _ = self._allreduce.average(own, [], over)
        if self._allreduce.ranks > 1:
            self.waited.assign_add(now_that([*map(numbers_of, averaged)]) - computed)
        if not self._may_overflow:  # or LossScaleOptimizer leaves such steps out by itself
            self.own.assign_add(tf.add_n(sum_of(own)))
            self.averaged.assign_add(tf.add_n(sum_of(averaged)))
        if self._dependence is not None:
            averaged = [tf.identity(mean) for mean in averaged]
            for mean, variable, whom in zip(averaged, variables, over, strict=True):
                if whom == "alone":
                    self._dependence.part(variable.path, _tensors(mean))
                else:
                    self._dependence.averaged([mean])
        return averaged

    def _given(self, gradient: Any, variable: Any) -> Any:
        """A gradient as all optimizers that update `variable` take it; see Update.given."""
        updating = self._updating.get(id(variable))
        for update, number in updating or ():
            gradient = update.given(number, gradient)
        return gradient if updating else tf.convert_to_tensor(gradient)


def _tensors(gradient: Any) -> list[tf.Tensor]:
    is_rows = isinstance(gradient, tf.IndexedSlices)
    return [gradient.values, gradient.indices] if is_rows else [tf.convert_to_tensor(gradient)]


def _numbers_of(variables: Sequence[Any], pieces: OptimizerPieces | None) -> dict[int, int]:
    """The number of each variable, and of what holds its piece, by `id`."""
    both = (variables, pieces.held) if pieces else (variables,)
    return {id(variable): number for own in both for number, variable in enumerate(own)}


def make_own_train_step(
    model: keras.Model, state: ModelState, allreduce: GradientAllreduce, undo: bool, plan: LossPlan
) -> TrainStep:
    """Builds `step(batch, flags) -> report` around the train_step of `model`. The step is collective.

    Gradients of the model's variables are averaged over all ranks where train_step computes them. When it has ended,
    its numbers and the flags are averaged, and the changes that it has made to variables otherwise than by optimizers,
    where they depend on a rank's rows.

    Args:
        undo: If loss or gradients are not finite or a rank leaves the batch out, all variables get their old values
            back, so that of several optimizers all or none is applied; which takes a copy of them in each step.
        plan: How ranks share a batch.
    """
    ranks, train_step = allreduce.ranks, own_train_step(model)
    whose = f"train_step of {type(model).__name__}"
    averaging, names = _Averaging(allreduce, state, whose), list[str]()
    variables, shared = state.everything(), state.shared()

    def step(batch: Any, flags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        dependence = None if graph is None else RankDependence(graph, state.per_rank)
        kept = {id(v): tf.identity(v.value) for v in (variables if undo else shared if ranks > 1 else ())}
        terms, begun = LossTerms(plan, allreduce.mean), now_that([])
        weighed = terms.recorded() if ranks > 1 else nullcontext()
        after = tf.control_dependencies([begun])
        with exchanging(allreduce.groups), averaging.during(dependence), weighed, after:
            logs = logs_of(train_step(batch), whose)
        names[:] = logs
        changed = [v for v in shared if dependence is None or dependence.assigned(v)] if ranks > 1 else []
        numbers = tf.stack(list(logs.values()))
        own_finite = tf.math.is_finite(tf.reduce_sum(numbers) + averaging.own)
        changes = [v.value - kept[id(v)] for v in changed]
        report = tf.concat([[logs.get("loss", numbers[0])], flags, numbers], axis=0)
        _, (*changes, report) = allreduce.average([], [*changes, report])
        end = 1 + flags.shape[0]
        finite = tf.math.is_finite(tf.reduce_sum(report[end:]) + averaging.averaged)
        if averaging.apart:
            finite = tf.logical_and(finite, all_finite(allreduce.collectives, [averaging.averaged]))
        applied = tf.logical_and(finite, report[end - 1] <= 0)

        def keep() -> tf.Tensor:
            for variable, change in zip(changed, changes, strict=True):
                variable.assign(kept[id(variable)] + change)
            return tf.zeros([1])

        def leave() -> tf.Tensor:
            for variable in variables if undo else ():
                if graph is None or may_assign(graph, variable):
                    variable.assign(kept[id(variable)])
            return tf.reshape(tf.cast(tf.logical_not(own_finite), tf.float32), [1])

        to_blame = tf.cond(applied, keep, leave)
        report = tf.concat([report[:end], [tf.cast(applied, tf.float32)], to_blame, report[end:]], axis=0)
        return report, tf.stack([begun, begun, begun + averaging.waited, now_that([to_blame])])

    if model.run_eagerly:
        return reporting(_traced_before(step) if averaging.apart else step, names)
    return reporting(GraphCall(tf.function(step, reduce_retracing=True, autograph=False)), names)


def _traced_before(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step`, which runs eagerly, and is traced once before: a graph shows what its updates are computed from."""
    seen: list[Any] = []

    def run(batch: Any, flags: tf.Tensor) -> Any:
        if not seen:
            specs = tf.nest.map_structure(tf.type_spec_from_value, (batch, flags))
            with rng_state.unchanged():
                seen.append(tf.function(step, autograph=False).get_concrete_function(*specs))
        return step(batch, flags)

    return run
