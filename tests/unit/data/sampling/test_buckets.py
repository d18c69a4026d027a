"""Rows of like length together: still each row once, and a pure function of the window's seed and place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.data.sampling import buckets as buckets_module
from hpc_train.data.sampling.buckets import Buckets, bucketed
from hpc_train.data.sampling.dealing import Blocks
from hpc_train.data.sampling.sampler import Sampler
from tests.support import examples

ROWS = 3000
LENGTHS = np.random.default_rng(0).integers(1, 200, ROWS)


def sampler(rank: int = 0, size: int = 1, batch_size: int = 5, bucket: bool = True) -> Sampler:
    blocks = Blocks(np.append(np.arange(0, ROWS, 7), ROWS))
    by = Buckets(lambda rows: LENGTHS[rows], batch_size) if bucket else None
    return Sampler(ROWS, batch_size, rank, size, 9, "block", blocks=blocks, buckets=by)


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 20), min_size=1, max_size=200), st.integers(1, 40), st.integers(0, 9))
def test_buckets_are_runs_of_sorted_lengths_in_another_order(lengths: list[int], size: int, seed: int) -> None:
    order = bucketed(np.array(lengths), size, seed)
    assert sorted(order) == list(range(len(lengths)))
    assert order.tolist() == bucketed(np.array(lengths), size, seed).tolist()
    by_length = np.argsort(lengths, kind="stable")
    wanted = {tuple(sorted(by_length[k : k + size])) for k in range(0, len(lengths), size)}
    place, left = 0, set(wanted)
    while left:
        bucket = next(b for b in left if tuple(order[place : place + len(b)]) == b)
        left.remove(bucket)
        place += len(bucket)


@settings(max_examples=examples(40))
@given(st.integers(1, 900), st.integers(0, 3), st.integers(1, 4), st.data())
def test_any_part_of_a_window_is_the_same_as_of_the_whole(
    n: int, seed: int, batch_size: int, data: st.DataObject
) -> None:
    whole = Buckets(lambda rows: LENGTHS[rows], batch_size).slice(n, seed, 0, n, lambda places: places + 5)
    assert sorted(whole) == list(range(n))
    first = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(first + 1, n))
    part = Buckets(lambda rows: LENGTHS[rows], batch_size).slice(n, seed, first, end, lambda places: places + 5)
    assert part.tolist() == whole[first:end].tolist()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_row_comes_once_an_epoch_in_batches_of_like_length(size: int) -> None:
    steps = ROWS // size // 5
    batches = [sampler(rank, size).rows_between(0, steps).reshape(-1, 5) for rank in range(size)]
    rows = np.concatenate(batches).reshape(-1)
    assert len(np.unique(rows)) == len(rows) == steps * size * 5
    plain = np.concatenate([sampler(rank, size, bucket=False).rows_between(0, steps) for rank in range(size)])

    def padding(found: np.ndarray) -> float:
        lengths = LENGTHS[found]
        return 1 - lengths.sum() / (lengths.max(axis=1) * 5).sum()

    assert padding(np.concatenate(batches)) < padding(plain.reshape(-1, 5)) / 2


def test_any_step_can_be_had_at_once_and_after_a_change_of_size() -> None:
    whole = sampler(0, 2).rows_between(0, 900)
    assert sampler(0, 2).rows_between(333, 340).tolist() == whole[333 * 5 : 340 * 5].tolist()
    before = [sampler(rank, 2) for rank in range(2)]
    progress = before[0].progress_at(100)
    after = [replace(sampler(rank, 3), progress=progress) for rank in range(3)]
    read = [one.rows_between(0, 100) for one in before]
    left = [one.rows_between(100, 100 + (ROWS - 1000) // 15) for one in after]
    rows = np.concatenate([*read, *left])
    assert len(np.unique(rows)) == len(rows) == 1000 + (ROWS - 1000) // 15 * 15


def test_lengths_are_read_once_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets_module, "POOLS_HELD", 1)
    read: list[int] = []
    by = Buckets(lambda rows: (read.append(len(rows)), LENGTHS[rows])[1], 1)
    for first in (0, 10, 250, 300):
        by.slice(600, 1, first, first + 10, lambda places: places)
    assert read == [256, 256]
