"""The rows of a step, where a job goes on with other ranks; without TensorFlow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpc_train as ht
from hpc_train.engine.global_batch import ASKED_FOR, LARGEST, ROWS, GlobalBatch

COUNTS = st.integers(1, 300)


def batch_of(rows: int, pieces: int, readers: int, before: dict[str, str], keep: bool = True) -> GlobalBatch:
    spec = ht.TrainSpec(ht.HDF5Input("train.h5", batch_size=rows), max_steps=1, keep_global_batch=keep)
    found = GlobalBatch.of(spec, ht.RunConfig("job", accumulate_steps=pieces), readers, before)
    assert found is not None
    return found


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_nearest_batch_is_computed_in_pieces_of_no_more_rows(rows: int, pieces: int, first: int, then: int) -> None:
    pieces = min(rows, pieces)
    began = batch_of(rows, pieces, first, {})
    assert (began.rows, began.pieces, began.total) == (rows, pieces, rows * first)
    before = {ASKED_FOR: str(rows), **began.settings}
    found = batch_of(rows, pieces, then, before)
    assert abs(found.total - began.total) <= then / 2 or found.rows == 1
    assert -(-found.rows // found.pieces) <= -(-rows // pieces) and found.pieces <= found.rows
    assert (found.warning(5) is None) == (found.total == began.total)
    assert batch_of(rows, pieces, first, {**before, **found.settings}).total == began.total, "and back"


def test_what_is_not_kept_is_told() -> None:
    before = {ASKED_FOR: "16", ROWS: "64"}
    found = batch_of(16, 1, 2, before, keep=False)
    assert (found.rows, found.total) == (16, 32)
    assert (
        found.warning(9)
        == "from step 9 on a step has 32 rows of all ranks, before 64: train.keep_global_batch keeps it"
    )
    assert batch_of(8, 1, 2, before).total == 16, "another batch_size is asked for"


@pytest.mark.parametrize("text", ["", "0", "-4", "1e3", "9" * 40, str(LARGEST + 1), "²", "16 "])
def test_what_no_run_wrote_counts_for_nothing(text: str) -> None:
    assert batch_of(16, 1, 2, {ASKED_FOR: "16", ROWS: text}).total == 32


def test_what_has_no_batch_to_keep_is_refused() -> None:
    with pytest.raises(ht.UserError, match="the batches of an input_fn are its own"):
        ht.TrainSpec(lambda: None, max_steps=1, keep_global_batch=True)
    with pytest.raises(ht.UserError, match="bucket_by"):
        ht.TrainSpec(ht.HDF5Input("a.h5", shuffle="block", bucket_by="x"), max_steps=1, keep_global_batch=True)
    spec = ht.TrainSpec(ht.HDF5Input("a.h5"), max_steps=1, keep_global_batch=True)
    with pytest.raises(ht.UserError, match="strategy: sync"):
        GlobalBatch.of(spec, ht.RunConfig("job", strategy="async"), 2, {})
