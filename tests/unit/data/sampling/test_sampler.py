from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.data.sampling.dealing import Blocks
from hpc_train.data.sampling.sampler import DataProgress, Sampler, Window, evaluation_batches
from hpc_train.data.sampling.shuffle import derive_seed, drawn_with_replacement, permutation, permutation_slice
from tests.support import examples

MODES = ["global", "block", "none"]


def sampler_of(rows: int, batch: int, size: int, seed: int, shuffle: str, block_rows: int = 4) -> Sampler:
    return Sampler(rows, batch, 0, size, seed, shuffle, blocks=Blocks(np.append(np.arange(0, rows, block_rows), rows)))  # type: ignore[arg-type]


samplers = st.builds(
    lambda size, batch, extra, seed, shuffle, block: sampler_of(
        size * batch + extra, batch, size, seed, shuffle, block
    ),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(0, 200),
    st.integers(0, 2**63 - 1),
    st.sampled_from(MODES),
    st.integers(1, 40),
)


def rows_of(sampler: Sampler, first: int, end: int) -> np.ndarray:
    """Rows of steps `first`…`end - 1` on all ranks, int64 [ranks, steps, batch]."""
    ranks = [replace(sampler, rank=rank) for rank in range(sampler.size)]
    return np.array([[rank.rows_at(step) for step in range(first, end)] for rank in ranks], np.int64)


def assert_evenly_read(read: Counter[int], rows: int) -> None:
    """Each of the rows was read as often as there are whole epochs, or once more: each epoch has each row once."""
    epochs = sum(read.values()) // rows
    assert set(read.values()) | ({0} if len(read) < rows else set()) <= {epochs, epochs + 1}
    assert all(0 <= row < rows for row in read)
    if sum(read.values()) % rows == 0:
        assert len(read) == rows


@given(samplers, st.integers(1, 30))
def test_each_row_once_an_epoch_over_all_ranks(sampler: Sampler, steps: int) -> None:
    read: Counter[int] = Counter()
    for step in range(steps):
        read.update(rows_of(sampler, step, step + 1).ravel().tolist())
        assert_evenly_read(read, sampler.rows)


@given(samplers)
def test_whole_epochs_are_whole_permutations(sampler: Sampler) -> None:
    steps = math.lcm(sampler.rows, sampler.batch_size * sampler.size) // (sampler.batch_size * sampler.size)
    if steps * sampler.batch_size * sampler.size > 5000:
        return
    read = Counter(rows_of(sampler, 0, steps).ravel().tolist())
    assert len(read) == sampler.rows
    assert len(set(read.values())) == 1


@settings(max_examples=examples(200))
@given(samplers, st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=5))
def test_a_job_may_go_on_with_other_ranks_and_batches(sampler: Sampler, runs: list[tuple[int, int, int]]) -> None:
    read: Counter[int] = Counter()
    progress = DataProgress()
    for size, batch, steps in runs:
        sampler = replace(sampler, size=size, batch_size=batch, progress=progress)
        for step in range(progress.step, progress.step + steps):
            read.update(rows_of(sampler, step, step + 1).ravel().tolist())
            assert_evenly_read(read, sampler.rows)
        progress = sampler.progress_at(progress.step + steps)
        assert progress.rows_read == sum(read.values())
        assert len(progress.sizes) <= len(runs)


@given(samplers, st.integers(0, 60))
def test_going_on_with_as_many_ranks_changes_nothing(sampler: Sampler, stop: int) -> None:
    resumed = replace(sampler, progress=sampler.progress_at(stop))
    assert rows_of(sampler, stop, stop + 3).tolist() == rows_of(resumed, stop, stop + 3).tolist()
    again = replace(resumed, progress=resumed.progress_at(stop + 2))
    assert rows_of(sampler, stop + 2, stop + 3).tolist() == rows_of(again, stop + 2, stop + 3).tolist()
    assert sampler.augmentation_seed(stop) == resumed.augmentation_seed(stop)


@given(samplers, st.integers(0, 60))
def test_any_step_can_be_read_without_the_ones_before(sampler: Sampler, step: int) -> None:
    in_order = [sampler.rows_at(k) for k in range(step + 1)][-1]
    alone = replace(sampler, blocks=Blocks(sampler.blocks.starts)).rows_at(step)  # type: ignore[union-attr]
    assert alone.tolist() == in_order.tolist()
    assert alone.dtype == np.int64
    together = sampler.rows_between(max(0, step - 3), step + 1)
    assert together[-sampler.batch_size :].tolist() == alone.tolist()


@given(samplers.filter(lambda s: s.shuffle != "block"), st.integers(0, 40))
def test_ranks_share_the_global_batches_of_one_rank(sampler: Sampler, step: int) -> None:
    one = replace(sampler, batch_size=sampler.batch_size * sampler.size, size=1)
    assert rows_of(sampler, step, step + 1).ravel().tolist() == one.rows_at(step).tolist()


@given(samplers.map(lambda s: replace(s, shuffle="block")), st.integers(0, 30), st.integers(0, 6))
def test_block_mode_reads_windows_one_after_the_other(sampler: Sampler, stop: int, new_size: int) -> None:
    if new_size:
        sampler = replace(sampler, size=new_size, progress=sampler.progress_at(stop))
    for rank in range(sampler.size):
        own = replace(sampler, rank=rank)
        window: Window = own.window(own.place_of(stop))
        assert window.start <= own.place_of(stop) < window.stop
        for step in range(stop, stop + 8):
            allowed: set[int] = set()
            place = own.place_of(step)
            for row_window in itertools.takewhile(lambda w: w.start < place + own.batch_size, iterate(own, window)):
                assert row_window.stop > row_window.start
                allowed |= {row for first, end in row_window.rows for row in range(first, end)}
                assert len(allowed) >= row_window.stop - row_window.start
                if row_window.stop <= place + own.batch_size:
                    window = own.window(row_window.stop)
                assert sum(end - first for first, end in row_window.rows) <= own.window_rows
            assert set(own.rows_at(step).tolist()) <= allowed


def iterate(sampler: Sampler, window: Window):
    while True:
        yield window
        window = sampler.window(window.stop)


@pytest.mark.parametrize(("rows", "size"), [(10_000, 1), (10_007, 3), (999, 4)])
def test_a_window_is_a_tenth_of_the_share_and_of_whole_blocks(rows: int, size: int) -> None:
    for rank in range(size):
        sampler = replace(sampler_of(rows, 1, size, 3, "block", 25), rank=rank)
        window = sampler.window(sampler.place_of(0))
        end = rows // size
        while window.start < end:
            assert window.stop - window.start >= rows // size / 10
            whole = [run for run in window.rows if run[0] % 25 == 0 and run[1] in (run[0] + 25, rows)]
            assert len(whole) >= len(window.rows) - 2, "only the first and the last block may be cut"
            window = sampler.window(window.stop)
        assert window.start in (end, end + 1)


def test_rows_are_mixed_and_each_rank_has_its_own_seed() -> None:
    for shuffle in ("global", "block"):
        sampler = sampler_of(1000, 10, 2, 7, shuffle)
        rows = rows_of(sampler, 0, 50)
        assert abs(np.corrcoef(rows.mean(axis=2).ravel(), np.arange(100))[0, 1]) < 0.5
        assert rows.tolist() != rows_of(sampler, 50, 100).tolist(), "epochs differ"
        assert rows.tolist() != rows_of(replace(sampler, seed=8), 0, 50).tolist(), "seeds differ"
    seeds = {replace(sampler, rank=rank).augmentation_seed(step) for rank in range(2) for step in range(100)}
    assert len(seeds) == 200


def test_order_is_stable_for_ever() -> None:
    # A job resumed after an upgrade must find the order that it left.
    assert derive_seed(7, 0, 1) == 15529291740490724314
    assert permutation(8, 7).tolist() == [6, 7, 5, 1, 0, 4, 3, 2]
    assert sampler_of(1000, 8, 2, 7, "global").rows_at(130).tolist() == [980, 560, 232, 333, 669, 984, 275, 609]
    assert sampler_of(1000, 8, 2, 7, "block").rows_at(130).tolist() == [443, 841, 586, 509, 440, 281, 677, 932]


@settings(max_examples=examples(50))
@given(st.integers(1, 20_000), st.integers(0, 2**64 - 1), st.data())
def test_a_shuffle_is_a_bijection_of_which_any_part_can_be_had(n: int, seed: int, data: st.DataObject) -> None:
    whole = permutation(n, seed)
    assert np.sort(whole).tolist() == list(range(n))
    first = data.draw(st.integers(0, n))
    end = data.draw(st.integers(first, n))
    if end > first:
        assert permutation_slice(n, seed, first, end).tolist() == whole[first:end].tolist()


def test_shuffles_are_uniform() -> None:
    # Chi-square over all 120 orders of 5: 119 degrees of freedom, so 119 ± 15.4.
    orders = Counter(tuple(permutation(5, seed).tolist()) for seed in range(12_000))
    chi = sum((orders[order] - 100) ** 2 / 100 for order in itertools.permutations(range(5)))
    assert 60 < chi < 190
    # Where each of 64 rows goes: 63 x 63 degrees of freedom.
    places = np.zeros((64, 64))
    for seed in range(3200):
        places[np.arange(64), permutation(64, seed)] += 1
    assert 0.85 < ((places - 50) ** 2 / 50).sum() / 63**2 < 1.15
    order = permutation(100_000, 3)
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.02


@pytest.mark.parametrize("shuffle", MODES)
def test_a_billion_rows_take_little_memory_and_time(shuffle: str) -> None:
    rows = 10**10
    tracemalloc.start()
    sampler = replace(sampler_of(rows, 64, 8, 1, shuffle, 10**6), rank=5)
    start = time.process_time()
    for step in (0, 7_000_000, 19_531_249, 10**9):
        batch = sampler.rows_at(step)
        assert len(set(batch.tolist())) == 64
        assert 0 <= batch.min() <= batch.max() < rows
    if shuffle == "block":
        assert len(sampler.window(sampler.place_of(10**9)).rows) >= 125
    secs = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20, f"{peak} bytes for 10 billion rows in 10,000 blocks"
    assert secs < 30, "of the processor; whoever goes through all rows needs minutes"


def test_the_end_of_the_last_epoch() -> None:
    sampler = sampler_of(100, 8, 2, 1, "global")
    assert sampler.last_step(None) is None
    assert sampler.last_step(1) == 6
    assert sampler.last_step(4) == 25, "epochs follow without a gap: only the last one can leave rows"
    assert replace(sampler, progress=sampler.progress_at(30)).last_step(4) == 30


def test_an_order_that_changed_begins_with_an_epoch() -> None:
    sampler = sampler_of(100, 8, 2, 1, "block")
    progress = sampler.progress_at(10).next_epoch(100)
    assert progress == DataProgress(10, 200, ())
    fresh = replace(sampler, seed=2, progress=progress)
    read = Counter(rows_of(fresh, 10, 16).ravel().tolist())
    assert len(read) == 96
    assert fresh.epoch_of(10) == 2


def test_old_sizes_are_forgotten() -> None:
    progress = DataProgress()
    for size in itertools.chain(*[(1, 2, 3)] * 50):
        sampler = replace(sampler_of(60, 5, size, 1, "block"), progress=progress)
        progress = sampler.progress_at(progress.step + 1)
        assert len(progress.sizes) <= 13


@given(st.integers(1, 300), st.integers(1, 40), st.none() | st.integers(1, 20), st.integers(1, 6))
def test_evaluation_deals_out_the_batches_of_one_process(rows: int, batch: int, steps: int | None, size: int) -> None:
    one = list(evaluation_batches(rows, batch, steps, 0, 1))
    dealt = [evaluation_batches(rows, batch, steps, rank, size) for rank in range(size)]
    assert sorted(batch for rank in dealt for batch in rank) == one
    assert len(one) == min(-(-rows // batch), steps or rows)
    covered = [row for first, end in one for row in range(first, end)]
    assert covered == list(range(min(rows, batch * (steps or rows))))


@given(
    st.integers(1, 6), st.integers(1, 9), st.integers(0, 90), st.integers(0, 2**62), st.sampled_from(("global", "none"))
)
def test_a_bootstrap_draws_each_epoch_from_the_same_rows(
    size: int, batch: int, extra: int, seed: int, shuffle: str
) -> None:
    plain = sampler_of(size * batch + extra, batch, size, 1, shuffle)
    drawn = replace(plain, bootstrap=seed)
    steps = math.lcm(plain.rows, batch * size) // (batch * size)
    rows = rows_of(drawn, 0, steps)
    assert 0 <= rows.min() <= rows.max() < plain.rows
    epochs = steps * batch * size // plain.rows
    counts = Counter(rows.ravel().tolist())
    assert all(count % epochs == 0 for count in counts.values()), "each row as often in each epoch"

    alone = replace(drawn, size=1, batch_size=batch * size)
    np.testing.assert_array_equal(rows.transpose(1, 0, 2).reshape(-1), rows_of(alone, 0, steps).reshape(-1))


def test_a_bootstrap_leaves_out_as_many_rows_as_chance_does() -> None:
    rows, places = 20_000, np.arange(20_000)
    first, second = (drawn_with_replacement(rows, seed, places) for seed in (1, 2))
    for drawn in (first, second):
        assert abs(len(np.unique(drawn)) / rows - (1 - math.exp(-1))) < 0.01
        assert abs(drawn.mean() / rows - 0.5) < 0.01
    assert abs(np.mean(first == second)) < 0.001
