"""What starts synchronous training, where that fails."""

from __future__ import annotations

import pytest

from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.world import UndeclaredGroupsError, World
from hpc_train.errors import UserError
from hpc_train.strategies.synchronous import strategy as synchronous


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UndeclaredGroupsError("without [0, 1]"), (UserError, "run.mesh: without")),
        (RuntimeError("lost"), (RuntimeError, "^lost")),
    ],
)
def test_the_mesh_is_to_blame_for_groups_that_horovod_lacks_and_for_nothing_else(monkeypatch, error, expected):
    def fails(*_args):
        raise error

    monkeypatch.setattr(synchronous, "collectives_by", fails)
    with pytest.raises(expected[0], match=expected[1]):
        synchronous.gradient_allreduce(World.alone(), RunConfig(allreduce="mpi"))
