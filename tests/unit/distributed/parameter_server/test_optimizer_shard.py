"""Pieces of variables on servers, updated by Keras optimizers, against the whole variables and the same optimizer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpc_train.distributed.optimizer_trials import refuse_uncuttable, takes_rows
from hpc_train.distributed.optimizer_variables import build, clipped, parts_of, refuse_loss_scale
from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard
from hpc_train.distributed.parameter_server.window_layout import (
    WEIGHT,
    Mailbox,
    Rows,
    ServerLayout,
    mailboxes,
    server_layout,
)
from hpc_train.distributed.partition import Partition, VariableSpec, partition
from hpc_train.distributed.tensors import aligned_zeros
from hpc_train.errors import UserError
from hpc_train.optimizers.fused import fused_updates

keras = pytest.importorskip("keras")

SHAPES = [(40, 24), (24,), (50, 16), (7, 5)]
ROWS = 2
"""The variable whose gradient is rows."""


def values(seed: int, rows: bool = False) -> list[Any]:
    random = np.random.default_rng(seed)
    found: list[Any] = [random.normal(size=shape).astype(np.float32) for shape in SHAPES]
    if rows:
        numbers = np.sort(random.permutation(50)[:9]).astype(np.int64)
        found[ROWS] = (numbers, found[ROWS][numbers])
    return found


def dense(gradient: Any) -> np.ndarray:
    if not isinstance(gradient, tuple):
        return gradient
    whole = np.zeros(SHAPES[ROWS], np.float32)
    whole[gradient[0]] = gradient[1]
    return whole


def as_tensor(gradient: Any, as_rows: bool) -> Any:
    if not (as_rows and isinstance(gradient, tuple)):
        return keras.ops.convert_to_tensor(dense(gradient))
    import tensorflow as tf

    numbers, values = gradient
    return tf.IndexedSlices(tf.constant(values), tf.constant(numbers), tf.constant(SHAPES[ROWS], tf.int64))


class Served:
    """A model's variables on `servers` servers, each with its own optimizer, and mailboxes of `workers`."""

    def __init__(
        self, make: Callable[[], Any], servers: int, workers: int = 1, rows: bool = False, **options: Any
    ) -> None:
        specs = [VariableSpec(s, np.dtype(np.float32), rows=rows and i == ROWS) for i, s in enumerate(SHAPES)]
        self.plan: Partition = partition(specs, servers)
        self.shards: list[OptimizerShard] = []
        self.layouts: list[ServerLayout] = []
        self.boxes: list[list[Mailbox]] = []
        for server in range(servers):
            model = variables(0)
            shard = OptimizerShard(model, make(), self.plan, server, [True] * len(SHAPES), **options)
            reference = variables(0)
            shard.load(reference, build(make(), reference))
            layout = server_layout(self.plan, server, workers, 0, shard.state_nbytes)
            memory = aligned_zeros(layout.nbytes)
            self.boxes.append(mailboxes(memory, layout, self.plan, server, 0))
            shard.bind(self.boxes[-1])
            self.shards.append(shard)
            self.layouts.append(layout)

    def put(self, gradients: list[Any], worker: int = 0) -> None:
        for server, boxes in enumerate(self.boxes):
            boxes[worker].header.view(np.float64)[WEIGHT] = 1.0
            for piece, place in zip(self.plan.pieces(server), boxes[worker].gradients, strict=True):
                gradient = gradients[piece.variable]
                if isinstance(place, Rows):
                    first = piece.start // SHAPES[piece.variable][1]
                    mine = (gradient[0] >= first) & (gradient[0] < first + piece.shape[0])
                    count = int(mine.sum())
                    place.count[0] = count
                    place.numbers[:count] = gradient[0][mine] - first
                    place.values[:count] = gradient[1][mine]
                else:
                    place[...] = np.ravel(gradient)[piece.start : piece.stop].reshape(piece.shape)

    def apply(self, rate: float = 1.0) -> None:
        for shard, boxes in zip(self.shards, self.boxes, strict=True):
            shard.apply(boxes, rate)

    def parameters(self) -> list[np.ndarray]:
        arena = aligned_zeros(self.plan.nbytes)
        for server, shard in enumerate(self.shards):
            shard.write_parameters(arena[self.plan.cuts[server] : self.plan.cuts[server + 1]])
        specs = zip(self.plan.variables, self.plan.offsets, strict=True)
        return [arena[o : o + s.nbytes].view(s.dtype).reshape(s.shape).copy() for s, o in specs]


def variables(seed: int) -> list[Any]:
    names = ["kernel", "bias", "embeddings", "gamma"]
    return [keras.Variable(v, name=n) for v, n in zip(values(seed), names, strict=True)]


def assert_alike(served: Served, whole: list[Any]) -> None:
    for ours, theirs in zip(served.parameters(), whole, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-6, atol=2e-7)


def excluding(make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        optimizer = make()
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma"])
        return optimizer

    return made


o = keras.optimizers
schedule = keras.optimizers.schedules
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: o.SGD(0.1),
    "momentum": lambda: o.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: o.Adam(schedule.CosineDecay(0.1, 6)),
    "amsgrad": lambda: o.Adam(0.1, amsgrad=True, clipvalue=0.5),
    "adamw": excluding(lambda: o.AdamW(0.1, weight_decay=0.05)),
    "ema": lambda: o.SGD(0.1, momentum=0.5, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
    "rmsprop": lambda: o.RMSprop(0.05, momentum=0.3, centered=True),
    "adagrad": lambda: o.Adagrad(0.1),
    "adadelta": lambda: o.Adadelta(1.0),
    "adamax": lambda: o.Adamax(0.1),
    "nadam": lambda: o.Nadam(0.1),
    "ftrl": lambda: o.Ftrl(0.1),
    "lion": lambda: o.Lion(0.01),
    "accumulating": lambda: o.SGD(0.1, gradient_accumulation_steps=2),
    "several": lambda: several(excluding(lambda: o.AdamW(0.1, weight_decay=0.05))(), o.Ftrl(0.1)),
}


def several(others: Any, embeddings: Any) -> Any:
    """The embeddings are updated by an optimizer of their own."""
    return o.MultiOptimizer(o.OptimizerMap(others, {"embeddings": embeddings}))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pieces_on_three_servers_change_as_the_whole(name: str) -> None:
    make = OPTIMIZERS[name]
    served, whole, optimizer = Served(make, servers=3, rows=True), variables(0), make()
    assert served.plan.cut_variables, "the test wants variables that are cut"
    optimizer.clipvalue = None  # by the worker, here by nobody
    optimizer.build(whole)
    as_rows = takes_rows(optimizer)
    for step in range(1, 5):
        gradients = values(step, rows=True)
        served.put(gradients)
        served.apply()
        with fused_updates(optimizer):
            optimizer.apply([as_tensor(g, as_rows) for g in gradients], whole)
    assert_alike(served, whole)
    common = build(make(), variables(0)).common
    for shard in served.shards:
        assert int(shard._optimizer.iterations) == int(optimizer.iterations)
        for part, whole_part in zip(parts_of(shard._optimizer), parts_of(optimizer), strict=True):
            assert int(part.iterations) == int(whole_part.iterations), "also where it has no piece"
        assert len(shard.optimizer_variables.common) == len(common)


def test_several_optimizers_clip_each_its_own() -> None:
    def make() -> Any:
        return several(o.SGD(1.0, global_clipnorm=0.5), o.SGD(1.0, clipvalue=0.1))

    whole, optimizer = variables(0), make()
    build(optimizer, whole)
    before = [variable.numpy() for variable in whole]
    found = clipped(optimizer, [keras.ops.convert_to_tensor(g) for g in values(1)], whole)
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in values(1)], whole)
    for gradient, variable, first in zip(found, whole, before, strict=True):
        np.testing.assert_allclose(first - np.asarray(gradient), variable.numpy(), rtol=1e-5, atol=1e-6)
    served = Served(make, servers=3)
    served.put([np.asarray(gradient) for gradient in found])
    served.apply()
    assert_alike(served, whole)


@pytest.mark.parametrize("servers", [1, 2])
def test_the_mean_of_workers_is_clipped_and_applied_once(servers: int) -> None:
    clip = {"global_clipnorm": 0.7} if servers == 1 else {"clipvalue": 0.3}

    def make() -> Any:
        return o.Adam(0.1, **clip)

    served, whole, optimizer = Served(make, servers, workers=3, rows=True, mean=True), variables(0), make()
    optimizer.build(whole)
    for step in range(3):
        given = [values(10 * step + worker, rows=True) for worker in range(3)]
        for worker, gradients in enumerate(given):
            served.put(gradients, worker)
        served.apply()
        means = [np.mean([dense(g[i]) for g in given], axis=0) for i in range(len(SHAPES))]
        with fused_updates(optimizer):
            optimizer.apply([keras.ops.convert_to_tensor(mean) for mean in means], whole)
    assert_alike(served, whole)


def test_weight_decay_leaves_out_the_pieces_of_what_a_layers_name_leaves_out() -> None:
    def made() -> Any:
        optimizer = o.AdamW(0.1, weight_decay=0.3)
        optimizer.exclude_from_weight_decay(var_names=["head/"])
        return optimizer

    def named(seed: int) -> list[Any]:
        with keras.name_scope("head"):
            head = [keras.Variable(v, name="kernel") for v in values(seed)[:1]]
        return [*head, *(keras.Variable(v, name="kernel") for v in values(seed)[1:])]

    whole, optimizer = named(0), made()
    optimizer.build(whole)
    specs = [VariableSpec(shape, np.dtype(np.float32)) for shape in SHAPES]
    plan = partition(specs, 2)
    assert 0 in plan.cut_variables
    shards = [OptimizerShard(named(0), made(), plan, server, [True] * len(SHAPES)) for server in range(2)]
    for server, shard in enumerate(shards):
        reference = named(0)
        shard.load(reference, build(made(), reference))
        layout = server_layout(plan, server, 1, 0, shard.state_nbytes)
        boxes = mailboxes(aligned_zeros(layout.nbytes), layout, plan, server, 0)
        shard.bind(boxes)
        for piece, place in zip(plan.pieces(server), boxes[0].gradients, strict=True):
            place[...] = np.ravel(values(1)[piece.variable])[piece.start : piece.stop].reshape(piece.shape)
        shard.apply(boxes, 1.0)
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in values(1)], whole)
    for server, shard in enumerate(shards):
        for piece, held in zip(plan.pieces(server), shard.variables, strict=True):
            wanted = np.ravel(whole[piece.variable].numpy())[piece.start : piece.stop]
            np.testing.assert_allclose(np.ravel(held.numpy()), wanted, rtol=2e-6, atol=2e-7)


def test_an_optimizer_that_keeps_the_gradient_does_not_keep_the_mailbox() -> None:
    class Keeps(o.SGD):
        def build(self, given: list[Any]) -> None:
            super().build(given)
            self.last = [self.add_variable_from_reference(v, name="last") for v in given]

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign(self.last[self._get_variable_index(variable)], gradient)
            super().update_step(gradient, variable, learning_rate)

    served = Served(lambda: Keeps(0.1), servers=1)
    for step in (1, 2):
        served.put(values(step))
        served.apply()
        served.put(values(7))
        for slots, gradient in zip(served.shards[0].optimizer_variables.slots, values(step), strict=True):
            np.testing.assert_array_equal(slots[-1].numpy(), gradient)


def test_a_server_without_gradients_counts_updates_all_the_same() -> None:
    specs = [VariableSpec(shape, np.dtype(np.float32)) for shape in SHAPES]
    plan = partition(specs, 1)
    shard = OptimizerShard(variables(0), o.SGD(0.1), plan, 0, [False] * len(SHAPES))
    layout = server_layout(plan, 0, 1, 0, shard.state_nbytes)
    boxes = mailboxes(aligned_zeros(layout.nbytes), layout, plan, 0, 0)
    shard.bind(boxes)
    shard.apply(boxes, 1.0)
    assert int(shard._optimizer.iterations) == 1


def test_whole_variables_are_not_copied_and_any_optimizer_will_do() -> None:
    served, whole, optimizer = Served(lambda: o.Adafactor(0.1), servers=1), variables(0), o.Adafactor(0.1)
    optimizer.build(whole)
    for step in range(1, 4):
        served.put(values(step))
        served.apply()
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in values(step)], whole)
    assert_alike(served, whole)


@pytest.mark.parametrize("schedule_used", [False, True])
def test_staleness_scales_the_learning_rate_and_not_the_gradient(schedule_used: bool) -> None:
    def make() -> Any:
        return o.Adam(schedule.CosineDecay(0.1, 10) if schedule_used else 0.1)

    served = Served(make, servers=2, scale=True)
    told = served.shards[0].learning_rate
    served.put(values(1))
    served.apply(rate=0.25)
    for number, (before, ours) in enumerate(zip(values(0), served.parameters(), strict=True)):
        optimizer_step = o.Adam(0.1)
        probe = keras.Variable(before)
        optimizer_step.build([probe])
        optimizer_step.apply([keras.ops.convert_to_tensor(values(1)[number])], [probe])
        np.testing.assert_allclose(ours - before, (probe.numpy() - before) / 4, rtol=1e-4, atol=1e-6)
    assert told == pytest.approx(0.1)
    if not schedule_used:
        assert served.shards[0].learning_rate == pytest.approx(0.1)


def test_state_goes_out_and_in_again() -> None:
    make = OPTIMIZERS["adam"]
    served = Served(make, servers=2)
    for step in range(1, 4):
        served.put(values(step))
        served.apply()
    whole, optimizer = variables(5), make()
    owned = build(optimizer, whole)
    for shard in served.shards:  # into the whole, as a checkpoint has it
        for piece, held, slots in zip(shard.pieces, shard.variables, shard.optimizer_variables.slots, strict=True):
            for theirs, mine in zip([whole[piece.variable], *owned.slots[piece.variable]], [held, *slots], strict=True):
                flat = np.ravel(theirs.numpy()).copy()
                flat[piece.start : piece.stop] = np.ravel(mine.numpy())
                theirs.assign(flat.reshape(theirs.shape))
    for theirs, mine in zip(owned.common, served.shards[0].optimizer_variables.common, strict=True):
        theirs.assign(mine.numpy())
    again = Served(make, servers=3)
    for shard in again.shards:
        shard.load(whole, owned)
    for other in (served, again):
        other.put(values(9))
        other.apply()
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in values(9)], whole)
    assert_alike(served, whole)
    assert_alike(again, whole)


def test_the_state_that_is_written_is_parameters_slots_and_the_rest_in_this_order() -> None:
    shard = Served(OPTIMIZERS["momentum"], servers=1).shards[0]
    state = aligned_zeros(shard.state_nbytes)
    shard.write_state(state)
    first = shard.variables[0].numpy()
    assert state[: first.nbytes].tobytes() == first.tobytes()
    assert [v.path for v in shard.state[: len(SHAPES)]] == [v.path for v in shard.variables]
    assert len(shard.state) == 2 * len(SHAPES) + 2  # momentum for each; iteration and learning rate


CUT = SimpleNamespace(path="dense/kernel")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_work_element_by_element_can_be_cut(name: str) -> None:
    refuse_uncuttable(OPTIMIZERS[name](), [CUT], "run.parameter_servers", "set parameter_servers: 1")


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon"])
def test_optimizers_that_look_at_the_whole_cannot_be_cut(name: str) -> None:
    if not hasattr(o, name):
        pytest.skip(f"this Keras has no {name}")
    with pytest.raises(UserError, match=rf"parameter_servers: {name} cannot be applied to a part.*dense/kernel"):
        refuse_uncuttable(getattr(o, name)(0.1), [CUT], "run.parameter_servers", "set parameter_servers: 1")


def test_a_loss_scale_cannot_be_shared() -> None:
    with pytest.raises(UserError, match="LossScaleOptimizer"):
        refuse_loss_scale(o.LossScaleOptimizer(o.SGD(0.1)))


def test_building_tells_which_variables_are_slots_of_which() -> None:
    whole = variables(0)
    found = build(o.Adam(0.1, use_ema=True), whole)
    assert [[slot.shape for slot in own] for own in found.slots] == [[tuple(v.shape)] * 3 for v in whole]
    assert [v.name for v in found.common] == ["iteration", "learning_rate"]
