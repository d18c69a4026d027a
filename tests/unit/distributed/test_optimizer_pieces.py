"""How trainable variables are cut among ranks, and what is refused; exchanges are in tests/parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.distributed import optimizer_pieces
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_pieces import OptimizerPieces, buckets_of
from hpc_train.distributed.partition import VariableSpec, even_partition
from hpc_train.distributed.share import Share, averaged_over, set_share, share_of
from hpc_train.distributed.tensors import ALIGNMENT
from hpc_train.errors import UserError
from hpc_train.optimizers.lars import LARS
from tests.support import examples

shapes = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=2), min_size=1, max_size=6)


@settings(max_examples=examples(200))
@given(shapes, st.integers(1, 6), st.sampled_from(["float16", "float32", "float64"]))
def test_parts_are_of_one_size_and_have_each_element_once(found: list[list[int]], ranks: int, dtype: str) -> None:
    specs = [VariableSpec(tuple(shape), np.dtype(dtype)) for shape in found]
    plan = even_partition(specs, ranks)
    assert {plan.nbytes_of(rank) for rank in range(ranks)} == {plan.cuts[1]}
    assert plan.cuts[1] % ALIGNMENT == 0
    assert plan.nbytes < sum(spec.nbytes for spec in specs) + ALIGNMENT * (len(specs) + ranks)
    for number, spec in enumerate(specs):
        pieces = [piece for rank in range(ranks) for piece in plan.pieces(rank) if piece.variable == number]
        assert [0, *(piece.stop for piece in pieces)] == [*(piece.start for piece in pieces), spec.size]
        assert all(piece.start * spec.dtype.itemsize % ALIGNMENT == 0 for piece in pieces)


@settings(max_examples=examples(30))
@given(shapes, st.integers(2, 5))
def test_all_ranks_together_hold_each_slot_once(found: list[list[int]], ranks: int) -> None:
    counted = [np.zeros(shape, int) for shape in found]
    for rank in range(ranks):
        variables = [keras.Variable(np.zeros(shape, np.float32)) for shape in found]
        pieces = OptimizerPieces(keras.optimizers.SGD(0.1, momentum=0.9), variables, Mesh(ranks, 1, rank))
        for count, held, slots in zip(counted, pieces.held, pieces.optimizer_variables.slots, strict=True):
            (slot,) = slots
            assert share_of(slot) == share_of(held)
            assert share_of(slot).shape == count.shape
            share_of(slot).of(count)[...] += 1
    assert all((count == 1).all() for count in counted)


def test_large_variables_travel_alone_and_small_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_pieces, "LARGE_BYTES", 1024)
    monkeypatch.setattr(optimizer_pieces, "BUCKET_BYTES", 300)
    sizes = {"a": 16, "large": 512, "b": 50, "odd": 513, "c": 5}
    variables = [keras.Variable(np.zeros(size, np.float32), name=name) for name, size in sizes.items()]
    variables += [keras.Variable(np.zeros(3, np.float64), name="other"), keras.Variable(1.0, name="scalar")]
    assert sorted(b.numbers for b in buckets_of(variables, Mesh(2, 1, 1))) == [(0, 2), (1,), (3,), (4,), (5,)]
    monkeypatch.setattr(optimizer_pieces, "BUCKET_BYTES", 3000)
    assert sorted(b.numbers for b in buckets_of(variables, Mesh(2, 1, 1))) == [(0, 2, 3, 4), (1,), (5,)]


def test_what_a_mesh_has_cut_is_cut_among_the_ranks_of_its_data_axis() -> None:
    whole, part = keras.Variable(np.zeros((8, 6), np.float32)), keras.Variable(np.zeros((8, 3), np.float32))
    rows = keras.Variable(np.zeros((5, 2), np.float32))
    set_share(part, Share((8, 6), 1, 3, 6), "data")
    set_share(rows, Share((10, 2), 0, 5, 10), "alone")
    pieces = OptimizerPieces(keras.optimizers.Adam(0.1), [whole, part, rows], Mesh(2, 2, 3))
    assert [averaged_over(held) for held in pieces.held] == ["world", "data", "alone"]
    assert share_of(pieces.held[1]) == Share((8, 6), 1, 3, 6).narrowed(16, 24)
    assert pieces.held[2] is rows
    assert [share_of(slot) for slot in pieces.optimizer_variables.slots[2]] == [Share((10, 2), 0, 5, 10)] * 2


@pytest.mark.parametrize("make", [LARS, lambda: keras.optimizers.Lamb(0.1), lambda: keras.optimizers.Adafactor(0.1)])
def test_optimizers_of_whole_variables_are_refused(make: Callable[[], Any]) -> None:
    variable = keras.Variable(np.zeros((8, 6), np.float32), name="kernel")
    with pytest.raises(UserError, match=r"run\.shard_optimizer: .*part of a variable.*kernel.*leave shard_optimizer"):
        OptimizerPieces(make(), [variable], Mesh(2, 1, 0))


def test_an_optimizer_that_is_built_is_refused() -> None:
    variable, optimizer = keras.Variable(np.zeros((8, 6), np.float32)), keras.optimizers.SGD(0.1)
    optimizer.build([variable])
    with pytest.raises(UserError, match="built already"):
        OptimizerPieces(optimizer, [variable], Mesh(2, 1, 0))


def test_variables_with_constraints_and_without_axes_stay_whole() -> None:
    bounded = keras.Variable(np.zeros(50, np.float32))
    bounded.constraint = keras.constraints.NonNeg()
    variables = [bounded, keras.Variable(np.float32(1)), keras.Variable(np.zeros(50, np.float32))]
    pieces = OptimizerPieces(keras.optimizers.SGD(0.1), variables, Mesh(2, 1, 0))
    assert pieces.cut == {2}
    assert pieces.held[:2] == variables[:2]
