"""Each reducer gives what numpy gives of all values at once, whatever blocks these come in."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import hpc_train as ht
from hpc_train.data.ragged import Ragged
from hpc_train.errors import UserError
from hpc_train.mapreduce.packing import pack, unpack
from hpc_train.mapreduce.reducer import Reducer, Together
from hpc_train.mapreduce.tree import Partials, Tree

r = ht.reducers
CUTS = st.lists(st.integers(0, 400), max_size=12)


def reduced(reducer: Reducer[Any], blocks: Sequence[Any]) -> Any:
    """As ranks would: merged in the tree, each partial result packed as for another rank."""
    tree = Tree(len(blocks))
    partials = Partials[Any](tree, lambda one, two: reducer.merge(unpack(pack(one)), two))
    for number, block in enumerate(blocks):
        partials.add((0, number), reducer.add(reducer.init(), block))
    return reducer.result(partials.by_node[tree.root])


def cut(values: np.ndarray, cuts: Sequence[int]) -> list[np.ndarray]:
    places = sorted({0, len(values), *(min(place, len(values)) for place in cuts)})
    return [values[first:end] for first, end in itertools.pairwise(places)] or [values]


NUMBERS = arrays.arrays(np.float64, st.tuples(st.integers(1, 60), st.integers(1, 3)), elements=st.floats(-1e6, 1e6))


@given(NUMBERS, CUTS)
def test_moments_are_numpys(values: np.ndarray, cuts: list[int]) -> None:
    blocks = cut(values, cuts)
    found = reduced(r.Moments(), blocks)
    assert (found["count"] == len(values)).all()
    scale = np.abs(values).max() + 1e-300
    np.testing.assert_allclose(found["mean"], values.mean(axis=0), rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(found["variance"], values.var(axis=0), rtol=1e-9, atol=1e-12 * scale**2)
    np.testing.assert_array_equal(reduced(r.Mean(), blocks), found["mean"])
    np.testing.assert_allclose(reduced(r.Sum(), blocks), values.sum(axis=0), rtol=1e-12, atol=1e-9 * scale)
    ends = reduced(r.MinMax(), blocks)
    np.testing.assert_array_equal([ends["min"], ends["max"]], [values.min(axis=0), values.max(axis=0)])


def test_slices_of_one_to_nine_weigh_by_their_rows() -> None:
    values = np.random.default_rng(0).normal(5, 3, 10_000)
    slices = [values[:1000], values[1000:]]
    mean = reduced(r.Mean(), slices)
    assert abs(mean - values.mean()) < 1e-12
    assert abs(np.mean([part.mean() for part in slices]) - values.mean()) > 1e-3, "as without weights"


def test_a_large_mean_costs_no_digits_of_the_variance() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=5000)
    found = reduced(r.Moments(), cut(values, range(0, 5000, 7)))
    assert found["variance"] == pytest.approx(values.var(), rel=1e-6)


def test_nan_is_passed_on_or_skipped() -> None:
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan], [5.0, 7.0]])
    blocks = [values[:2], values[2:3], values[3:]]
    assert np.isnan(reduced(r.Mean(), blocks)).all()
    assert np.isnan(reduced(r.MinMax(), blocks)["max"]).all()
    skipped = reduced(r.Moments(skip_nan=True), blocks)
    assert skipped["count"].tolist() == [3, 1]
    assert skipped["mean"].tolist() == [3.0, 7.0]
    np.testing.assert_allclose(skipped["variance"], np.nanvar(values, axis=0))
    ends = reduced(r.MinMax(skip_nan=True), blocks)
    assert (ends["min"].tolist(), ends["max"].tolist()) == ([1.0, 7.0], [5.0, 7.0])


def test_whole_numbers_are_summed_exactly_or_not_at_all() -> None:
    large = np.array([2**60 + 1, 2**60 + 3])
    assert reduced(r.Sum(), [large[:1], large[1:]]) == 2**61 + 4
    assert reduced(r.Sum(), [np.array([True, False, True])]) == 2
    assert reduced(r.Sum(), [np.array([2**62]), np.array([2**62 - 1])]) == 2**63 - 1
    for blocks in ([np.full(8, 2**60)], [np.full(4, 2**60), np.full(4, 2**60)], [np.array([2**62] * 2), [-1]]):
        with pytest.raises(UserError, match="more than int64 holds; map them to float64"):
            reduced(r.Sum(), blocks)


def test_a_mean_with_infinite_or_very_large_values_does_not_depend_on_their_place() -> None:
    rows = np.array([[np.inf, 1.0], [1.0, 2.0]])
    for blocks in ([rows[:1], rows[1:]], [rows[1:], rows[:1]], [rows]):
        assert reduced(r.Mean(), blocks).tolist() == [np.inf, 1.5]
    assert reduced(r.Mean(), [np.array([1e308]), np.array([-1e308])]) == 0


def test_blocks_of_which_no_row_is_kept_change_nothing() -> None:
    nothing = np.array([])  # float64, as numpy has it
    assert reduced(r.Sum(), [np.array([2**60 + 1]), nothing]) == 2**60 + 1
    assert reduced(r.TopK(1), [nothing, np.array(["a"], object), []])["values"].tolist() == ["a"]
    assert reduced(r.Mean(), [np.zeros((3, 2)), nothing]).tolist() == [0, 0]


def test_blocks_without_rows_change_nothing() -> None:
    values = np.arange(6.0)
    blocks = [values[:0], values, values[:0]]
    assert reduced(r.Mean(), blocks) == 2.5
    assert reduced(r.MinMax(), blocks) == {"min": 0.0, "max": 5.0}
    assert reduced(r.Histogram(), blocks)["counts"].sum() == 6
    assert reduced(r.Quantiles(), blocks)["count"] == 6
    nothing = [values[:0]]
    assert np.isnan(reduced(r.Mean(), nothing))
    assert np.isnan(reduced(r.Quantiles(), nothing)["values"]).all()
    assert reduced(r.Histogram(), nothing)["counts"].tolist() == []


@pytest.mark.parametrize(
    "made",
    [r.Sum(), r.Mean(), r.Moments(), r.MinMax(), r.Histogram(), r.Quantiles()],
    ids=lambda made: type(made).__name__,
)
def test_what_are_no_numbers_is_refused_by_name(made: Reducer[Any]) -> None:
    for values, what in (
        (np.array(["a"], object), "texts"),
        (3.5, "a single number"),
        ([1 + 2j], "an array of complex"),
    ):
        with pytest.raises(UserError, match=f"^{type(made).__name__} gets {what}"):
            made.add(made.init(), values)


@pytest.mark.parametrize("made", [r.Sum(), r.Mean(), r.MinMax()], ids=lambda made: type(made).__name__)
def test_rows_of_different_shapes_are_refused(made: Reducer[Any]) -> None:
    with pytest.raises(UserError, match=r"rows have shape \[2\] in one block and \[3\] in another"):
        reduced(made, [np.zeros((4, 2)), np.zeros((4, 3))])


# ---- histograms


@given(
    arrays.arrays(st.sampled_from([np.float32, np.int16, np.uint8]), st.integers(1, 200))
    | arrays.arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e300, 1e300) | st.just(np.nan)), CUTS,
    st.integers(2, 80),
)  # fmt: skip
def test_a_histogram_counts_all_values_exactly(values: np.ndarray, cuts: list[int], bins: int) -> None:
    found = reduced(r.Histogram(bins), cut(values, cuts))
    finite = values[np.isfinite(values)].astype(np.float64)
    assert found["missing"] == int(np.isnan(values).sum())
    assert (found["below"], found["above"]) == (int((values == -np.inf).sum()), int((values == np.inf).sum()))
    edges, counts = found["edges"], found["counts"]
    assert len(counts) <= bins
    if finite.size:
        widths = np.diff(edges)
        assert len(set(widths.tolist())) == 1 and math.frexp(widths[0])[0] == 0.5, "a power of two"
        assert values.dtype.kind == "f" or widths[0] >= 1
        places = np.searchsorted(edges, finite, side="right") - 1
        assert counts.tolist() == np.bincount(places, minlength=len(counts)).tolist()
        assert counts[0] > 0 and counts[-1] > 0


@given(arrays.arrays(np.float64, st.integers(1, 100), elements=st.floats(-9, 9)), CUTS)
@example(np.array([2.5e-280, 0.0]), [1])
def test_bins_do_not_depend_on_blocks(values: np.ndarray, cuts: list[int]) -> None:
    one, many = reduced(r.Histogram(), [values]), reduced(r.Histogram(), cut(values, cuts))
    assert pack(one) == pack(many)


def test_given_edges_hold_their_lower_ends_and_the_last_one_both() -> None:
    values = np.array([-1, 0, 0.5, 1, 2, 3, 4, np.nan, np.inf])
    found = reduced(r.Histogram(edges=[0, 1, 3]), [values[:4], values[4:]])
    assert found["counts"].tolist() == [2, 3]
    assert (found["below"], found["above"], found["missing"]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: r.Histogram(1), "Histogram: bins: 1 is not allowed; allowed: a whole number from 2 to 65,536"),
        (lambda: r.Histogram("8"), "Histogram: bins: '8' is not allowed"),
        (lambda: r.Histogram(edges=[1, 1]), "allowed: two numbers or more, ascending"),
        (lambda: r.Histogram(edges="ab"), "allowed: two numbers or more, ascending"),
        (lambda: r.Quantiles([1.5]), "allowed: numbers from 0 to 1"),
        (lambda: r.Quantiles(0.5), "allowed: numbers from 0 to 1"),
        (lambda: r.Quantiles(error=0), "error: 0 is not allowed; allowed: a number from 0.00001 to 1"),
        (lambda: r.Quantiles(error="x"), "error: 'x' is not allowed"),
        (lambda: r.TopK(0), "TopK: k: 0 is not allowed; allowed: a whole number from 1 on"),
        (lambda: r.TopK(), "TopK: k: missing"),
        (lambda: r.Vocabulary(most_distinct=0), "most_distinct: 0 is not allowed"),
        (lambda: r.Custom(1, 2, 3), "Custom: init: 1 is not allowed; allowed: a function"),
        (lambda: r.Mean(skipnan=True), "did you mean `skip_nan`"),
    ],
)
def test_arguments_are_checked(made: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        made()


# ---- quantiles


def rank_error(values: np.ndarray, probability: float, found: float) -> float:
    """How far the ranks that `found` has lie from that of `probability`, as a part of all."""
    below, upto = (values < found).mean(), (values <= found).mean()
    return max(0.0, below - probability, probability - upto)


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "few values", "alternating"])
@pytest.mark.parametrize("blocks", [1, 7, 300])
def test_quantiles_are_within_the_error_that_they_state(order: str, blocks: int) -> None:
    values = np.random.default_rng(0).exponential(size=300_000)
    if order == "few values":
        values = np.floor(values * 3)
    elif order == "alternating":
        values = np.where(np.arange(len(values)) % 2, values, -1e6 * values)
    elif order != "random":
        values = np.sort(values)[:: 1 if order == "ascending" else -1]
    probabilities = [0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.999, 1]
    found = reduced(r.Quantiles(probabilities, error=0.01), np.array_split(values, blocks))
    assert 0 < found["error"] <= 0.01
    for probability, value in zip(probabilities, found["values"], strict=True):
        assert rank_error(values, probability, value) <= found["error"]
    assert (found["values"][0], found["values"][-1]) == (values.min(), values.max())


def test_quantiles_of_few_numbers_are_exact() -> None:
    values = np.random.default_rng(0).permutation(1001).astype(np.float32)
    found = reduced(r.Quantiles(), np.array_split(values, 10))
    assert found["error"] == 0
    assert found["values"].tolist() == [0, 250, 500, 750, 1000]
    assert reduced(r.Quantiles(), [np.array([np.nan, 1.0, np.nan])])["missing"] == 2
    assert reduced(r.Quantiles([0.55, 0.07]), [np.arange(1, 101)])["values"].tolist() == [55, 7]


# ---- vocabularies


@given(st.lists(st.integers(-5, 30) | st.integers(2**62, 2**62 + 3), min_size=1, max_size=200), CUTS)
def test_a_vocabulary_counts_each_value(values: list[int], cuts: list[int]) -> None:
    found = reduced(r.Vocabulary(), cut(np.array(values, np.int64), cuts))
    expected = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
    assert list(zip(found["values"].tolist(), found["counts"].tolist(), strict=True)) == expected
    assert (found["error"], found["count"], found["missing"]) == (0, len(values), 0)


@given(st.lists(st.text(max_size=3) | st.none(), min_size=1, max_size=100), CUTS)
def test_texts_are_counted_in_any_form(values: list[str | None], cuts: list[int]) -> None:
    array = np.empty(len(values), object)
    array[:] = values
    found = reduced(r.Vocabulary(), cut(array, cuts))
    texts = [value for value in values if value is not None]
    expected = sorted(Counter(texts).items(), key=lambda pair: (-pair[1], pair[0].encode()))
    assert list(zip(found["values"].tolist(), found["counts"].tolist(), strict=True)) == expected
    assert found["missing"] == values.count(None)
    ragged = Ragged.of_texts([text.encode() for text in texts])
    assert pack(reduced(r.Vocabulary(), [ragged])["counts"]) == pack(found["counts"])


@pytest.mark.parametrize("blocks", [1, 2, 50])
def test_beyond_its_bound_a_vocabulary_is_wrong_by_no_more_than_it_says(blocks: int) -> None:
    values = np.random.default_rng(0).zipf(1.3, 50_000) % 20_000
    true = Counter(values.tolist())
    found = reduced(r.TopK(20, most_distinct=500), np.array_split(values, blocks))
    assert 0 < found["error"] <= len(values) / 500
    for value, count in zip(found["values"].tolist(), found["counts"].tolist(), strict=True):
        assert count <= true[value] <= count + found["error"]
    frequent = {value for value, count in true.items() if count > found["error"]}
    kept = set(reduced(r.Vocabulary(most_distinct=500), np.array_split(values, blocks))["values"].tolist())
    assert frequent <= kept and len(kept) <= 500


def test_values_of_two_kinds_and_fractions_are_refused() -> None:
    with pytest.raises(UserError, match="some values are numbers, others are texts"):
        reduced(r.Vocabulary(), [np.array([1]), np.array(["a"], object)])
    with pytest.raises(UserError, match="numbers of float64; give an array of texts, whole numbers"):
        reduced(r.Vocabulary(), [np.array([1.5])])
    with pytest.raises(UserError, match=r"2\.5 among texts"):
        reduced(r.Vocabulary(), [np.array(["a", 2.5], object)])
    with pytest.raises(UserError, match="half a character"):
        reduced(r.Vocabulary(), [np.array(["\ud800"], object)])
    with pytest.raises(UserError, match="below 0 and others beyond int64"):
        reduced(r.Vocabulary(), [np.array([-1]), np.array([2**63], np.uint64)])
    assert reduced(r.Vocabulary(), [np.array([1]), np.array([2**63], np.uint64)])["values"].tolist() == [1, 2**63]


# ---- a user's own, and several


def test_a_reducer_of_functions_and_several_by_name() -> None:
    product = r.Custom(no_logs, add_logs, merge_logs, lambda state: (math.exp(state["logs"]), state["seen"]))
    values = np.arange(1.0, 7)
    both = Together({"product": product, "mean": r.Mean()})
    found = reduced(both, [{"product": part, "mean": part} for part in (values[:1], values[1:4], values[4:])])
    assert found["mean"] == 3.5
    assert found["product"][0] == pytest.approx(720)
    assert found["product"][1] == [1.0, 2.0, 5.0], "in the order of the blocks"


def no_logs() -> Any:
    return {"logs": 0.0, "seen": []}


def merge_logs(one: Any, two: Any) -> Any:
    return {name: one[name] + two[name] for name in one}


def add_logs(state: Any, values: np.ndarray) -> Any:
    return {"logs": state["logs"] + float(np.log(values).sum()), "seen": [*state["seen"], float(values[0])]}


def test_a_state_that_is_no_data_is_refused() -> None:
    made = r.Custom(set, lambda state, values: state, lambda one, two: one)
    with pytest.raises(UserError, match="the state that `init` returns has a set; a state is made of arrays"):
        made.init()


def test_names_that_map_fn_does_not_return_are_refused() -> None:
    both = Together({"a": r.Sum(), "b": r.Sum()})
    for values in ({"a": np.zeros(2)}, np.zeros(2)):
        with pytest.raises(UserError, match=r"there are reducers for \['a', 'b'\], but map_fn, or without one"):
            both.add(both.init(), values)
