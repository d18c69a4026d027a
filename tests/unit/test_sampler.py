from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.data.sampler import Sampler, derive_seed, evaluation_batches, permutation

samplers = st.builds(
    lambda size, batch, extra, seed, shuffle: Sampler(size * batch + extra, batch, 0, size, seed, shuffle),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(0, 200),
    st.integers(0, 2**63 - 1),
    st.sampled_from(["global", "block", "none"]),
)


def epoch_rows(sampler: Sampler, epoch: int) -> np.ndarray:
    """Rows of one epoch, int64 [ranks, steps, batch]."""
    steps = range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch)
    ranks = [
        Sampler(sampler.rows, sampler.batch_size, rank, sampler.size, sampler.seed, sampler.shuffle)
        for rank in range(sampler.size)
    ]
    return np.array([[rank.rows_at(step) for step in steps] for rank in ranks])


@settings(deadline=None)
@given(samplers, st.integers(0, 3))
def test_each_row_at_most_once_an_epoch_and_no_full_batch_left(sampler: Sampler, epoch: int) -> None:
    rows = epoch_rows(sampler, epoch).ravel()
    assert len(set(rows.tolist())) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < sampler.rows
    assert sampler.rows - len(rows) < sampler.size * sampler.batch_size


@settings(deadline=None)
@given(samplers)
def test_any_step_can_be_read_without_the_ones_before(sampler: Sampler) -> None:
    last = 3 * sampler.steps_per_epoch - 1
    alone = sampler.rows_at(last)
    in_order = [sampler.rows_at(step) for step in range(last + 1)][-1]
    assert alone.tolist() == in_order.tolist()
    assert alone.dtype == np.int64


@given(samplers.filter(lambda s: s.shuffle != "block"))
def test_ranks_share_the_global_batches_of_one_rank(sampler: Sampler) -> None:
    one = Sampler(sampler.rows, sampler.batch_size * sampler.size, 0, 1, sampler.seed, sampler.shuffle)
    assert one.steps_per_epoch == sampler.steps_per_epoch
    many = epoch_rows(sampler, 1).transpose(1, 0, 2).reshape(sampler.steps_per_epoch, -1)
    assert np.sort(many).tolist() == np.sort(epoch_rows(one, 1)[0]).tolist()


def test_epochs_and_seeds_differ_and_the_order_is_stable() -> None:
    for shuffle in ("global", "block"):
        sampler = Sampler(1000, 10, 1, 2, 7, shuffle)  # type: ignore[arg-type]
        other_seed = Sampler(1000, 10, 1, 2, 8, shuffle)  # type: ignore[arg-type]
        assert sampler.rows_at(0).tolist() != sampler.rows_at(sampler.steps_per_epoch).tolist()
        assert sampler.rows_at(0).tolist() != other_seed.rows_at(0).tolist()
    # A job resumed after an upgrade must find the order that it left.
    assert derive_seed(7, 0, 1) == 15529291740490724314
    assert permutation(8, 7).tolist() == [4, 1, 6, 3, 2, 7, 5, 0]


def test_a_permutation_mixes() -> None:
    order = permutation(10_000, 3)
    assert sorted(order.tolist()) == list(range(10_000))
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05


def test_blocks_are_dealt_and_each_rank_has_its_own_seed() -> None:
    ranks = [Sampler(6400, 10, rank, 2, 7, "block") for rank in range(2)]
    assert ranks[0].shuffle_seed(0) != ranks[1].shuffle_seed(0) != ranks[1].shuffle_seed(1)
    rows = epoch_rows(ranks[0], 0)
    own = [set((rows[rank].ravel() // 200).tolist()) for rank in range(2)]
    assert not own[0] & own[1], "blocks of 200 rows go to one rank each"


@given(st.integers(1, 300), st.integers(1, 40), st.none() | st.integers(1, 20), st.integers(1, 6))
def test_evaluation_deals_out_the_batches_of_one_process(rows: int, batch: int, steps: int | None, size: int) -> None:
    one = evaluation_batches(rows, batch, steps, 0, 1)
    dealt = [evaluation_batches(rows, batch, steps, rank, size) for rank in range(size)]
    assert sorted(batch for rank in dealt for batch in rank) == one
    assert len(one) == min(-(-rows // batch), steps or rows)
    covered = [row for first, end in one for row in range(first, end)]
    assert covered == list(range(min(rows, batch * (steps or rows))))
