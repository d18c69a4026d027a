"""An array that ranks hold in parts is the same again when it is put together block by block."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.distributed.layout import Layout, place_of
from hpc_train.distributed.share import Share
from tests.support import examples


def layout_of(held: list[Share]) -> Layout:
    return Layout(held[0].shape, np.array([place_of(share) for share in held], np.int64))


@st.composite
def shares(draw: st.DrawFn) -> list[Share]:
    """By rank: an array cut along an axis, each part of that cut by its elements or not, in any order, and copies."""
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    axis = draw(st.integers(0, len(shape) - 1))

    def cuts(end: int, name: str) -> list[tuple[int, int]]:
        inner = sorted(draw(st.lists(st.integers(0, end), max_size=3), label=name))
        return list(zip([0, *inner], [*inner, end], strict=True))

    boxes = [Share(shape, axis, *cut) for cut in cuts(shape[axis], "axis")]
    cut_flat = draw(st.booleans())
    parts = [box.narrowed(*cut) for box in boxes for cut in cuts(box.size, "flat")] if cut_flat else boxes
    held = [*parts, *draw(st.lists(st.sampled_from(parts), max_size=3))]
    return draw(st.permutations(held))


@pytest.mark.random
@given(shares(), st.integers(1, 70), st.sampled_from([np.dtype("f4"), np.dtype("u1"), np.dtype(ml_dtypes.bfloat16)]))
@settings(max_examples=examples(300), deadline=None)
def test_blocks_put_together_are_the_whole(held: list[Share], limit: int, dtype: np.dtype) -> None:
    shape = held[0].shape
    whole = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    own = [share.of(whole).reshape(-1) for share in held]
    layout = layout_of(held)
    lowest = {place_of(share): rank for rank, share in reversed(list(enumerate(held))) if share.size}
    found: list[np.ndarray] = []
    for block in layout.blocks(limit):
        assert math.prod(block.shape) <= limit
        assert block.start == sum(array.size for array in found), "blocks come in order, and leave nothing out"
        array = np.zeros(block.shape, dtype)
        elements = 0
        for piece in block.pieces:
            assert piece.rank in lowest.values(), "of those with the same part, the lowest is asked"
            piece.put(array, own[piece.rank][piece.first : piece.last])
            elements += piece.last - piece.first
        assert elements == array.size, "no element comes twice"
        found.append(array.reshape(-1))
    assert np.concatenate([*found, np.zeros(0, dtype)]).tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    "held",
    [
        [Share((4, 6), 1, 0, 3), Share((4, 6), 1, 0, 3)],
        [Share((4, 6), 1, 0, 3), Share((4, 6), 0, 0, 2)],
        [Share((4, 6), 1, 0, 3), Share((4, 6), 1, 2, 6)],
        [Share((4, 6)).narrowed(0, 10), Share((4, 6)).narrowed(11, 24)],
        [Share((4, 6)).narrowed(3, 3)],
    ],
)
def test_parts_that_are_not_the_whole_are_refused(held: list[Share]) -> None:
    with pytest.raises(ValueError, match=r"shape \[4, 6\] are not the whole"):
        layout_of(held)
