"""Whether a slot can keep its ranks."""

from __future__ import annotations

import pytest

from hpc_train.tuning.execution.place import start_otherwise


@pytest.mark.parametrize(
    ("key", "otherwise"),
    [
        ("run.mesh.model", True),
        ("run.mesh", True),
        ("run", True),
        ("run.chief", True),
        ("run.meshes", False),
        ("run.shard_optimizer", False),
        ("params.run", False),
    ],
)
def test_ranks_that_would_start_otherwise_are_not_kept(key: str, otherwise: bool) -> None:
    assert start_otherwise(["params.learning_rate", key]) == otherwise
    assert not start_otherwise(["params.learning_rate"])
