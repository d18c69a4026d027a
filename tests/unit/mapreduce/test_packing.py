"""What a reducer keeps goes to another rank as bytes, and comes back as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hpc_train.mapreduce.packing import pack, unpack

DTYPES = arrays.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufc") | st.sampled_from(["S3", "U2"]).map(
    np.dtype
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0))
)  # fmt: skip
STATES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def same(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return bool(type(one) is type(two) and one == two)


@given(STATES)
def test_states_come_back_as_they_were(state: Any) -> None:
    assert same(state, unpack(pack(state)))


def test_numbers_of_numpy_come_back_as_arrays_without_dimensions() -> None:
    assert unpack(pack({"n": np.float32(1.5)}))["n"] == np.float32(1.5)


def test_arrays_that_come_back_can_be_changed() -> None:
    array = unpack(pack([np.zeros(3)]))[0]
    array += 1
    assert array.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"seen": {1, 2}}, "a set at ['seen']"),
        ([{"a": (object(),)}], "a object at [0]['a'][0]"),
        ({1: 2}, "a dict with keys that are no text"),
        (np.array([None]), "an array of object"),
        ({"t": np.array(["2020-01-01"], "M8[D]")}, "an array of datetime64[D] at ['t']"),
    ],
)
def test_what_is_no_data_is_refused_by_its_place(state: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        pack(state)
    assert str(caught.value) == said
