from __future__ import annotations

import pytest

from hpc_train.engine.nan_policy import MAX_IN_A_ROW, MAX_ROLLBACKS, NanPolicy
from hpc_train.errors import JobEndedError
from hpc_train.outcome import EXIT_NOT_FINITE


def test_halt_names_step_and_ranks() -> None:
    with pytest.raises(JobEndedError, match=r"step 7: loss or gradients of rank 2 are not finite") as raised:
        NanPolicy("halt").step_was_bad(7, [2])
    assert (raised.value.code, raised.value.rank) == (EXIT_NOT_FINITE, 2)
    with pytest.raises(JobEndedError, match="of rank 0, 1, 2, 3, 4, 5, 6, 7 and 2 more are") as raised:
        NanPolicy("halt").step_was_bad(7, range(10))
    assert raised.value.rank is None
    with pytest.raises(JobEndedError, match="averaged over the ranks"):
        NanPolicy("halt").step_was_bad(7, [])


def test_skipping_ends_where_it_is_no_longer_a_batch_that_is_bad() -> None:
    health = NanPolicy("skip")
    for step in range(MAX_IN_A_ROW):
        assert health.step_was_bad(step, [0])[0] == "skip"
    health.step_was_good()
    for step in range(MAX_IN_A_ROW):
        assert health.step_was_bad(100 + step, [0])[0] == "skip"
    with pytest.raises(JobEndedError, match=f"as were the {MAX_IN_A_ROW} steps before"):
        health.step_was_bad(200, [0])
    assert not health.left_out


def test_rollbacks_are_limited_unless_training_gets_further() -> None:
    health = NanPolicy("rollback")
    for n in range(3 * MAX_ROLLBACKS):  # all in one interval between checkpoints
        assert health.step_was_bad(2 * n + 5, [1])[0] == "rollback"
        health.step_was_good()
    assert health.left_out == {2 * n + 5 for n in range(3 * MAX_ROLLBACKS)}
    furthest = max(health.left_out)
    for n in range(MAX_ROLLBACKS - 1):
        assert health.step_was_bad(furthest - 1 - n, [1])[0] == "rollback"
        health.step_was_good()
    with pytest.raises(JobEndedError, match="without getting any further"):
        health.step_was_bad(furthest - 1, [1])
