"""Each operation of Collectives and its gradient on real ranks, for all of them and for groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "collectives.py"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("carrier", ["horovod", "mpi"])
def test_operations_and_gradients_are_those_of_numpy(carrier: str, ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAM, carrier], tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks
